from dataclasses import asdict, replace

import pytest

from dap.config import PRESETS, FinetuneConfig, PruneConfig, TrainConfig
from dap.errors import DapError
from dap.specs import BestSpec, EvaluateSpec, ModelSpec, PruneSpec, TrainSpec, folder_name, identity, read
from dap.specs.methods import METHODS

DENSE = TrainSpec("digits", ("plain",), train=TrainConfig(seed=1))


def test_what_asks_for_the_same_has_one_id():
    assert identity(DENSE) == identity(replace(DENSE, root="elsewhere"))
    assert identity(DENSE) == identity(replace(DENSE, train=TrainConfig(steps=5001, check_every=300, seed=1)))
    pruned = PruneSpec(DENSE, "taylor")
    assert identity(pruned) == identity(replace(pruned, allocation="global", sparsities=(0.2, 0.4, 0.6, 0.8, 0.9)))
    channels = replace(pruned, allocation="flops")
    assert identity(channels) == identity(replace(channels, sparsities=(0.3, 0.5, 0.7)))
    assert identity(pruned) == identity(replace(pruned, prune=PruneConfig(steps=7), finetune=FinetuneConfig(steps=3)))
    assert folder_name(pruned) == f"prune-{identity(pruned)}"
    assert (
        identity(BestSpec((DENSE,), ("a", "b")))
        == identity(BestSpec((DENSE,), ("b", "a", "b")))
        != identity(BestSpec((DENSE,)))
    )


@pytest.mark.parametrize(
    "other",
    [
        replace(DENSE, train=TrainConfig(seed=2)),
        replace(DENSE, targets=("rotated",)),
        replace(DENSE, threads=1),
        replace(DENSE, options={"weight": 2}),
        BestSpec((DENSE,)),
        PruneSpec(DENSE),
        PruneSpec(BestSpec((DENSE,))),
        PruneSpec(DENSE, "taylor"),
        PruneSpec(DENSE, "taylor", batches=3),
        PruneSpec(DENSE, "taylor", allocation="erk"),
        PruneSpec(DENSE, "taylor", prune=PruneConfig(seed=3)),
        PruneSpec(DENSE, "taylor", prune=PruneConfig(include=("a*",))),
        PruneSpec(DENSE, "taylor", finetuned=True),
        PruneSpec(DENSE, "taylor", finetuned=True, finetune=FinetuneConfig(learning_rate=0.1)),
        PruneSpec(DENSE, "movement", finetune=FinetuneConfig(steps=2)),
        PruneSpec(DENSE, "dap", prune=PruneConfig(alpha=2.0)),
        PruneSpec(replace(DENSE, objective="coral")),
    ],
)
def test_what_asks_for_something_else_has_another(other):
    specs = [DENSE, PruneSpec(DENSE, "movement"), PruneSpec(DENSE, "magnitude")]
    assert identity(other) not in {identity(spec) for spec in specs}


@pytest.mark.parametrize("method", METHODS)
def test_a_spec_survives_a_file(method):
    import json

    for dense in (DENSE, BestSpec((DENSE, replace(DENSE, pixels=32))), "runs/dense"):
        spec = PruneSpec(dense, method, prune=PruneConfig(temperature=(1.0, 0.5)))
        again = read(PruneSpec, json.loads(json.dumps(asdict(spec))), "spec.json")
        assert again == spec
        assert identity(again) == identity(spec)


@pytest.mark.parametrize("method", METHODS)
def test_what_a_folder_keeps_does_not_change_with_a_preset(method, monkeypatch):
    own = ModelSpec("mine.nets:build", "images")
    specs = [PruneSpec(dense, method, prune=PruneConfig(steps=100)) for dense in (DENSE, own, BestSpec((DENSE,)))]
    specs += [replace(specs[0], allocation="flops"), EvaluateSpec(specs[0])]
    before = [(identity(spec), spec.resolved()) for spec in specs]
    monkeypatch.setitem(PRESETS, "paced", lambda steps: PRESETS["paper"](steps) | {"alpha": 7.0, "start": 7.0})
    assert PruneConfig().resolved().alpha == 7
    for id_, kept in before:
        assert kept.resolved() == kept
        assert identity(kept) == id_


def test_agnostic_masks_have_no_alpha():
    specs = [PruneSpec(DENSE, "agnostic", prune=config) for config in (PruneConfig(), PruneConfig(alpha=3.0))]
    assert identity(specs[0]) == identity(specs[1])
    assert {spec.resolved().prune.alpha for spec in specs} == {0.0}


def test_a_whole_number_may_stand_for_a_float():
    whole, float_ = (PruneSpec("x", prune=PruneConfig(alpha=alpha)) for alpha in (2, 2.0))
    assert identity(whole) == identity(float_)


def test_methods_that_were_proposed_for_some_sparsities_cut_these():
    found = {method: PruneSpec("x", method).canonical()["sparsities"] for method in ("ior", "dss", "dap")}
    assert found == {"ior": (0.5, 0.7), "dss": (0.1,), "dap": (0.2, 0.4, 0.6, 0.8, 0.9)}


def test_ids_stay_what_they_are():
    """A change here makes every finished run of every user unknown: it needs a reason."""
    assert identity(DENSE) == "76150a82a178"
    assert identity(PruneSpec(DENSE)) == "dcdc612c751d"
    assert identity(PruneSpec(DENSE, prune=PruneConfig("paper"))) == "8fef23831365"
    assert identity(PruneSpec(DENSE, "taylor")) == "2fc60a808464"


def test_a_measure_of_sensitivity_counts_unless_it_is_the_default():
    vote = PruneSpec(DENSE, prune=PruneConfig(sensitivity="vote"))
    assert identity(vote) != identity(PruneSpec(DENSE))
    assert identity(replace(vote, method="taylor")) == identity(PruneSpec(DENSE, "taylor"))  # which does not look at it
    values = asdict(PruneSpec(DENSE))
    del values["prune"]["sensitivity"]  # as earlier versions wrote it
    assert read(PruneSpec, values, "spec.json") == PruneSpec(DENSE)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "prune needs dense"),
        ({"dense": {"suite": "digits"}}, "prune.dense needs targets"),
        ({"dense": 3}, "prune.dense is 3; it must be text"),
        ({"dense": "x", "prune": {"stepz": 3}}, "prune.prune has no option 'stepz'; it has coefficient, steps"),
        ({"dense": "x", "prune": 3}, "prune.prune is 3; it must have the options of PruneConfig"),
        ({"dense": "x", "batches": "many"}, "prune.batches is 'many'; it must be a whole number"),
        ({"dense": "x", "batches": True}, "prune.batches is True; it must be a whole number"),
        ({"dense": "x", "finetuned": 1}, "prune.finetuned is 1; it must be true or false"),
        ({"dense": "x", "sparsities": 0.5}, "prune.sparsities is 0.5; it must be a list"),
        ({"dense": "x", "sparsities": [0.5, "a"]}, r"prune.sparsities\[1\] is 'a'; it must be a number"),
        ({"dense": "x", "prune": {"coefficient": "fast"}}, "is 'fast'; choose one of paced, paper"),
        ({"dense": "x", "prune": {"temperature": [1.0]}}, "prune.prune.temperature is \\[1.0\\]; it must be a list"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(values, message):
    with pytest.raises(DapError, match=message):
        read(PruneSpec, values, "prune")


def test_an_unknown_method():
    with pytest.raises(DapError, match="there is no method 'luck'"):
        identity(PruneSpec(DENSE, "luck"))
