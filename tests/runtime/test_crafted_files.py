"""Files changed with knowledge of their structure are refused, or hold what they held before; never another error."""

import json
import random
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from onnx import TensorProto, helper
from torch import nn
from torch.utils.data import TensorDataset

import dap
from dap.config import PruneConfig, TrainConfig
from dap.data import cache
from dap.errors import DapError
from dap.export import onnx as exported
from dap.masks import masks
from dap.method import learn as learning
from dap.models import ModelCard, load_classifier, load_sparse, save_sparse, saved, small_resnet, sparse
from dap.objectives import Dann
from dap.runs.dense import _load_objective, save_dense
from dap.runs.subjects import open_subjects
from dap.runtime import checkpoints
from dap.specs.file_names import MODEL, OBJECTIVE
from dap.training import loop as training
from data.small_suites import make_listing
from mutations import Tensors, bits_of, mutate_bytes, mutate_text, peak_memory, reset_peak

CARD = ModelCard(("a", "b", "c"), pixels=8)
DOMAINS = ("one", "two")


@dataclass
class Kind:
    """`load` gives what a file holds, in a form that can be compared; `seal` makes its checksums right again."""

    honest: Any
    restore: Callable[[], object]  # writes the honest file
    change: Callable[[Any, random.Random, bool], None]  # writes a changed file, with right checksums or not
    load: Callable[[], Any]


def tensor_kind(path: Path, load: Callable[[], Any], seal: Callable[[Tensors], None], **about: Any) -> Kind:
    honest = path.read_bytes()

    def change(_: Any, rng: random.Random, right: bool) -> None:
        file = Tensors.parse(honest, **about)
        if rng.random() < 0.1:
            path.write_bytes(mutate_bytes(honest, rng))
            return
        for _ in range(rng.choice([1, 1, 2])):
            with suppress(
                ValueError, LookupError, TypeError, AttributeError, RecursionError, zlib.error
            ):  # it was changed before
                file.mutate(rng)
        if right:
            with suppress(Exception):  # what the parser does not read has no checksum
                seal(file)
        path.write_bytes(file.build())

    return Kind(load(), lambda: path.write_bytes(honest), change, load)


def loaded(file: Tensors) -> dict[str, torch.Tensor]:
    return safetensors.torch.load(file.build())


def replace_part(file: Tensors, name: str, tensor: torch.Tensor) -> None:
    found = Tensors.parse(safetensors.torch.save({name: tensor})).parts[name]
    file.parts[name] = found


def mask_kind(folder: Path) -> Kind:
    path = folder / "masks"
    generator = torch.Generator().manual_seed(0)
    shapes = {"a.weight": (5, 7), "b.weight": (3,), "c.weight": (2, 2, 2)}
    dap.Masks({name: torch.rand(shape, generator=generator) > 0.5 for name, shape in shapes.items()}).save(path)

    def seal(file: Tensors) -> None:
        arrays = {name: tensor.numpy() for name, tensor in loaded(file).items() if name != "sha256"}
        replace_part(file, "sha256", torch.from_numpy(masks._digest(arrays).copy()))

    def load() -> Any:
        found = dap.Masks.load(path)
        assert found.total == sum(mask.numel() for mask in found.values())
        assert found.kept == sum(int(mask.sum()) for mask in found.values())
        return found

    return tensor_kind(path, load, seal, packed=("layout",))


def sparse_kind(folder: Path) -> Kind:
    path = folder / "sparse"
    weight = torch.zeros(6, 11)
    weight[::2, ::3] = 1.5
    save_sparse({"w": weight, "h": weight[:3].half(), "b": torch.ones(3)}, path, {"said": "so"})

    def seal(file: Tensors) -> None:
        assert file.metadata is not None
        about = json.loads(file.metadata["about"])
        about["checksums"] = {name: sparse._crc(tensor) for name, tensor in loaded(file).items()}
        about["forms"] = {name: sparse._form(tensor) for name, tensor in loaded(file).items()}
        file.metadata["about"] = json.dumps(about)
        file.metadata["checksum"] = sparse._code({n: t for n, t in file.metadata.items() if n != "checksum"})

    return tensor_kind(path, lambda: bits_of(load_sparse(path)), seal, texts=("about",))


def seal_state(file: Tensors) -> None:
    arrays = {name: tensor for name, tensor in loaded(file).items() if name != checkpoints._CHECKSUMS}
    replace_part(file, checkpoints._CHECKSUMS, checkpoints._checksums(arrays))


def two_domains() -> dict[str, TensorDataset]:
    generator = torch.Generator().manual_seed(0)
    return {name: TensorDataset(torch.randn(8, 4, generator=generator), torch.arange(8) % 2) for name in DOMAINS}


def tiny() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def learning_kind(folder: Path) -> Kind:
    path, config = folder / "state", PruneConfig(steps=4, target_sparsity=0.5, average=0.5, batch_size=4, f_update=1)
    data = two_domains()
    dap.learn_masks(tiny(), data, config, milestones=(0.1, 0.3), validation=data, checkpoint=path)
    looks = {"milestones": [0.1, 0.3], "eval_every": None, "validation": list(DOMAINS), "watch": []}

    def load() -> Any:
        found = learning.MaskPath(dap.Pruner(tiny(), config))
        learning._restore(found, path, list(DOMAINS), looks)
        state = found.pruner.state_dict()
        snapshots = {**found.snapshots, "best": found.best}
        return bits_of(state.pop("tensors")), state, repr(found.history), found.raw, snapshots

    return tensor_kind(path, load, seal_state, packed=("__values__",))


def training_kind(folder: Path) -> Kind:
    path, data = folder / "state", two_domains()
    config = TrainConfig(steps=4, batch_size=4, check_every=1, swad=dap.SwadConfig(converge=2, patience=3))
    dap.train(tiny(), data, config, validation=data, watch=data, checkpoint=path)

    def load() -> Any:
        model, objective = tiny(), dap.objectives.Erm()
        trainer = training.Trainer(model, objective, config)
        job = training._Training(trainer, list(DOMAINS), data, data, None)
        job.restore(path)
        tensors, values = trainer.state()
        return bits_of(tensors), repr(values), repr(job.dense.losses), repr(job.dense.scores), repr(job.dense.watched)

    return tensor_kind(path, load, seal_state, packed=("__values__",))


def classifier_kind(folder: Path) -> Kind:
    path = folder / "model"
    torch.manual_seed(0)
    dap.models.save_classifier(small_resnet(3, width=1), path, CARD)

    def seal(file: Tensors) -> None:
        assert file.metadata is not None
        file.metadata["checksum"] = saved._checksum(loaded(file), file.metadata["classifier"])

    def load() -> Any:
        model, card = load_classifier(path)
        assert len(card.class_names) == model.classes
        return bits_of(model.state_dict()), card, model.recipe

    return tensor_kind(path, load, seal, texts=("classifier",))


def objective_kind(folder: Path) -> Kind:
    model, objective = small_resnet(3, width=1), Dann(width=4)
    objective.prepare(model, DOMAINS, 3)
    save_dense(folder, model, objective, DOMAINS, CARD)
    (folder / MODEL).unlink()

    def load() -> Any:
        found = _load_objective(folder / OBJECTIVE, model)
        return bits_of(found.state_dict()), repr(found.identity()), found.trained

    return tensor_kind(folder / OBJECTIVE, load, seal_state, packed=("__values__",))


def onnx_kind(folder: Path) -> Kind:
    path = folder / "model.onnx"
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3, 3 * 8 * 8], np.linspace(-1, 1, 576).astype(np.float32))
    nodes = [helper.make_node("Flatten", ["images"], ["x"]), helper.make_node("Gemm", ["x", "w"], ["logits"], transB=1)]
    ends = [("images", ["batch", 3, 8, 8]), ("logits", ["batch", 3])]
    images, logits = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ends)
    graph = helper.make_graph(nodes, "g", [images], [logits], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    said = {name: json.dumps(getattr(CARD, name)) for name in exported._CARD}
    exported.write_onnx(model, said, path)
    honest = path.read_bytes()

    def change(_: Any, rng: random.Random, right: bool) -> None:
        changed = onnx.ModelProto.FromString(honest)
        props = {entry.key: entry.value for entry in changed.metadata_props}
        match rng.randrange(7):
            case 0:
                path.write_bytes(mutate_bytes(honest, rng))
                return
            case 1:
                changed.graph.initializer[0].raw_data = mutate_bytes(changed.graph.initializer[0].raw_data, rng)
            case 2:
                changed.opset_import[0].version += rng.choice([-7, -5, 1])
            case 3:
                side = rng.choice([*changed.graph.input, *changed.graph.output]).type.tensor_type
                side.shape.dim[rng.randrange(len(side.shape.dim))].dim_value = rng.choice([1, 2, 3, 8, 9, -1])
            case _:
                key = rng.choice(exported._CARD)
                props[key] = mutate_text(props[key].encode(), rng).decode(errors="replace")
        if right:
            exported.write_onnx(changed, props, path)
        else:
            helper.set_model_props(changed, props)
            path.write_bytes(changed.SerializeToString())

    def load() -> Any:
        session = exported.open_onnx(path, 1)
        if not session.verified:
            raise DapError("no checksum")  # as `dap predict` does
        card = session.card
        found = session.run(np.ones((2, session.channels, card.pixels, card.pixels), np.float32))
        return card, found.tobytes()

    return Kind(load(), lambda: path.write_bytes(honest), change, load)


def cache_kind(folder: Path) -> Kind:
    (folder / "images").mkdir()
    home = cache.cached(make_listing(folder / "images", 5), 8, folder / "cache", "test").folder
    honest = {name: (home / name).read_bytes() for name in ("pixels", "sizes", "sums")}
    written = dict(honest)

    def change(_: Any, rng: random.Random, right: bool) -> None:
        changed = dict(honest)
        name = rng.choice(list(honest))
        changed[name] = mutate_bytes(honest[name], rng)
        if right:
            images, sizes = changed["pixels"], changed["sizes"]
            parts = [np.frombuffer(images[at : at + 192], np.uint8) for at in range(0, len(images), 192)]
            sums = np.array([cache._sum(part) for part in parts], np.uint64)
            whole = np.frombuffer(sizes[: len(sizes) // 8 * 8], np.int32)
            changed["sums"] = sums.tobytes() + np.uint64(cache._total(whole, sums)).tobytes()
        write(changed)

    def write(changed: dict[str, bytes]) -> None:
        for name in (name for name in changed if changed[name] != written[name]):
            (home / name).write_bytes(changed[name])
        written.update(changed)

    def load() -> Any:
        store = cache.Cached(home, 8)
        images, sizes = store.read(np.arange(len(store.sizes)))
        assert ((sizes > 0).all(1) == store.readable).all()
        return images.tobytes(), sizes.tobytes()

    return Kind(load(), lambda: write(honest), change, load)


KINDS = {
    "masks": mask_kind,
    "sparse": sparse_kind,
    "mask learning": learning_kind,
    "training": training_kind,
    "classifier": classifier_kind,
    "objective": objective_kind,
    "onnx": onnx_kind,
    "image cache": cache_kind,
}


def attack(kind: Kind, count: int, seed: int) -> dict[str, int]:
    """Try `count` changed files, every other one with right checksums: how many were refused, and the peak memory."""
    rng, refused, honest = random.Random(seed), 0, 0
    for number in range(count):
        if number == count // 20:  # whatever is loaded on first use is there by now
            kind.restore()
            reset_peak()
            assert kind.load() == kind.honest
            honest = peak_memory()
        right = number % 2 == 1
        kind.change(None, rng, right)
        try:
            found = kind.load()
        except DapError:
            refused += 1
        else:
            assert right or found == kind.honest
    return {"tried": count, "refused": refused, "honest": honest, "peak": peak_memory()}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_only_what_is_sound_is_loaded(name: str, count: int, tmp_path: Path) -> None:
    kind = KINDS[name](tmp_path)
    found = attack(kind, count, seed=count)
    print(name, found)
    assert found["refused"] > count / 2
    assert found["peak"] < found["honest"] + 3 * 2**24  # 48 MB; the text of a bomb alone takes 64


def crafted_masks(bits: bytes, layout: bytes) -> bytes:
    arrays = {"bits": np.frombuffer(bits, np.uint8), "layout": np.frombuffer(zlib.compress(layout, 9), np.uint8)}
    return safetensors.numpy.save({**arrays, "sha256": masks._digest(arrays)})


@pytest.mark.parametrize(
    ("bits", "layout", "why"),
    [
        (b"\xff", b'{"w":[3,3]}', "a shape has 9 elements, and there are bits for 8"),
        (b"\xff\xff", b'{"w":[8]}', "2 bytes of bits for shapes that take 1"),
        (b"\xff", b'{"w":[7]}', "w has bits beyond its last weight"),
        (b"\xff", b'{"w":[1000000000000]}', "dimension"),
        (b"\xff", b'{"w":[-8]}', "dimension"),
        (b"\xff", b'{"w":[8.0]}', "dimension"),
        (b"\xff", b'{"w":[true,8]}', "dimension"),
        (b"\xff", b'{"w":[4],"w":[8]}', "the name 'w' twice"),
        (b"\xff", b"[8]", "not an object"),
        (b"\xff", b" " * 2**24 + b'{"w":[8]}', "longer than"),
    ],
)
def test_masks_that_no_model_has(bits: bytes, layout: bytes, why: str) -> None:
    with pytest.raises(DapError, match=f"the data is damaged or not a mask file .*{why}.*: make it again"):
        dap.Masks.from_bytes(crafted_masks(bits, layout))
    assert dap.Masks.from_bytes(crafted_masks(b"\xff", b'{"w":[8]}')).kept == 8


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        ({"name": "vit_giant_patch14_224", "classes": 3, "options": {}}, "does not fit today's vit_giant_patch14_224"),
        ({"name": "hf-hub:timm/resnet18.a1_in1k", "classes": 3, "options": {}}, "no backbone is called 'hf-hub:timm"),
        ({"name": "resnet18", "classes": 3, "options": {"weights": "pretrained"}}, "unknown: 'weights'"),
        ({"name": "small_resnet", "classes": 4, "options": {"width": 1}}, "names 3 classes, and the model has 4"),
        ({"name": "small_resnet", "classes": 3, "options": {"width": 2**20}}, "does not fit today's small_resnet"),
    ],
)
def test_recipes_that_the_tensors_do_not_fit(recipe: dict[str, Any], why: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    tensors = small_resnet(3, width=1).state_dict()
    card = {"class_names": ["a", "b", "c"], "pixels": 8}
    text = json.dumps({"recipe": recipe, "card": card})
    about = {"format": "dap-classifier-1", "classifier": text, "checksum": saved._checksum(tensors, text)}
    safetensors.torch.save_file(tensors, path, about)
    reset_peak()
    before = peak_memory()
    with pytest.raises(DapError, match=why):
        load_classifier(path)
    assert peak_memory() < before + 2**28


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pixels", "8"),
        ("pixels", 0),
        ("std", [0, 1, 1]),
        ("std", [1e-320] * 3),
        ("mean", [1e300] * 3),
        ("mean", [float("nan")] * 3),
        ("std", [1, 1]),
        ("more", 1),
    ],
)
def test_cards_that_prepare_no_image(field: str, value: Any) -> None:
    card = {"class_names": ["a"], "pixels": 8, "mean": [0, 0, 0], "std": [1, 1, 1]}
    assert ModelCard.parse(card, 1).pixels == 8
    with pytest.raises(DapError):
        ModelCard.parse({**card, field: value}, 1)


@pytest.mark.parametrize("change", [{"suite": [[]]}, {"targets": 3}, {"targets": [1]}, {"seed": "x"}, {"listings": 1}])
def test_notes_that_name_no_images(change: dict[str, Any], tmp_path: Path) -> None:
    notes = {"suite": "digits", "targets": ["plain"], "seed": 0, **change}
    dap.models.save_classifier(small_resnet(3, width=1), tmp_path / "model", replace(CARD, notes=notes))
    with pytest.raises(DapError, match="model is damaged or not a classifier file .* is not "):
        open_subjects(tmp_path / "model")


def test_a_file_without_its_checksum_is_predicted_with_when_asked_for(tmp_path: Path, capsys: Any) -> None:
    from PIL import Image

    from dap.cli.predict import predict_images

    onnx_kind(tmp_path)
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
    files = str(tmp_path / "model.onnx"), [str(tmp_path / "x.png")]
    assert predict_images(*files) == 0
    model = onnx.load(files[0])
    helper.set_model_props(model, {e.key: e.value for e in model.metadata_props if e.key != "checksum"})
    onnx.save(model, files[0])
    with pytest.raises(DapError, match="has no checksum: export it again, or .* --allow-unverified"):
        predict_images(*files)
    assert predict_images(*files, allow_unverified=True) == 0


def elsewhere(model: onnx.ModelProto, folder: Path) -> None:
    weight = model.graph.initializer[0]
    (folder / "weights").write_bytes(weight.raw_data or np.array(weight.float_data, np.float32).tobytes())
    for name in ("raw_data", "float_data"):
        weight.ClearField(name)
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="weights")


def in_a_node(model: onnx.ModelProto, folder: Path) -> None:
    elsewhere(model, folder)
    weight = model.graph.initializer.pop()
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=weight))


def without_inputs(model: onnx.ModelProto, folder: Path) -> None:
    model.graph.ClearField("node")
    model.graph.ClearField("input")
    model.graph.node.append(helper.make_node("Identity", ["w"], ["logits"]))


def more_classes(model: onnx.ModelProto, folder: Path) -> None:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [5, 192], np.ones(5 * 192, np.float32))
    model.graph.initializer[0].CopyFrom(weight)


def words(model: onnx.ModelProto, folder: Path) -> None:
    model.graph.node[-1].output[0] = "floats"
    model.graph.node.append(helper.make_node("Cast", ["floats"], ["logits"], to=TensorProto.STRING))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.STRING


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (elsewhere, "weights are elsewhere"),
        (in_a_node, "weights are elsewhere"),
        (without_inputs, "is damaged or not an ONNX file"),
        (more_classes, "names 3 classes, and the model has"),
        (words, "not logits"),
    ],
)
def test_onnx_files_that_dap_does_not_write(change: Callable[..., None], why: str, tmp_path: Path) -> None:
    kind, path = onnx_kind(tmp_path), tmp_path / "model.onnx"
    model = onnx.load(path)
    change(model, tmp_path)
    exported.write_onnx(model, {entry.key: entry.value for entry in model.metadata_props}, path)
    with pytest.raises(DapError, match=why):
        kind.load()


def test_a_cache_without_checksums_is_built_again(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    listing = make_listing(tmp_path / "images", 5)
    store = cache.cached(listing, 8, tmp_path / "cache", "test")
    images, _ = store.read(np.arange(5))
    (store.folder / "sums").unlink()
    (store.folder / "pixels").write_bytes(bytes(5 * 192))
    again = cache.cached(listing, 8, tmp_path / "cache", "test")
    assert np.array_equal(again.read(np.arange(5))[0], images)
