"""What rows and lines are called: the method, the dense model's objective, and the options that tell them apart."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

DENSE = "Dense"
_OBJECTIVE = "dense.objective"
_TITLES = {"group_dro": "GroupDRO", "mixup": "Mixup", "cdann": "C-DANN"}
_APART = ("dense.suite",)  # said elsewhere

Model = tuple[str, Mapping[str, Any], str]  # its method's title, its options by their path, its suite


def name_series(models: Sequence[Model]) -> list[tuple[str, str]]:
    """For each model its series, and that of the dense model it comes from.

    >>> name_series([("Dense", {"dense.objective": "erm"}, "x"), ("DAP", {"dense.objective": "erm"}, "x")])
    [('Dense', 'Dense'), ('DAP', 'Dense')]
    >>> name_series([("DAP", {"dense.objective": name}, "x") for name in ("erm", "coral")])
    [('ERM + DAP', 'ERM'), ('CORAL + DAP', 'CORAL')]
    """
    several = len({options.get(_OBJECTIVE) for _, options, _ in models}) > 1
    # Options are compared where nothing else differs: an objective, like a suite, has its own defaults.
    alike: dict[tuple[str, Any], dict[str, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for method, options, suite in models:
        alike[method, options.get(_OBJECTIVE)][suite].append(options)
    differing = {key: _differing(list(suites.values())) for key, suites in alike.items()}
    dense: dict[tuple[str, Any], list[str]] = defaultdict(list)
    for (_, objective), names in differing.items():
        known = dense[DENSE, objective]
        known += [name for name in names if name.startswith("dense.") and name not in known]
    return [
        (
            _title(
                method, options, (differing if method != DENSE else dense)[method, options.get(_OBJECTIVE)], several
            ),
            _title(DENSE, options, dense[DENSE, options.get(_OBJECTIVE)], several),
        )
        for method, options, _ in models
    ]


def _differing(groups: Sequence[Sequence[Mapping[str, Any]]]) -> list[str]:
    found: dict[str, None] = {}
    for models in groups:
        for name in dict.fromkeys(name for options in models for name in options if name not in _APART):
            if len({repr(options.get(name)) for options in models}) > 1:
                found[name] = None
    return list(found)


def _title(method: str, options: Mapping[str, Any], names: Sequence[str], several: bool) -> str:
    title = method
    if several:
        objective = options.get(_OBJECTIVE)
        base = "own model" if objective is None else _TITLES.get(str(objective), str(objective).upper())
        title = base if method == DENSE else f"{base} + {method}"
    shown = ", ".join(f"{_short(name)} {options[name]}" for name in names if name in options)
    return f"{title} ({shown})" if shown else title


def _short(name: str) -> str:
    """`dense.train.learning_rate` is the dense model's, `prune.alpha` mask learning's."""
    return name.removeprefix("dense.").removeprefix("train.").removeprefix("prune.").replace("_", " ")
