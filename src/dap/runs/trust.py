"""What opening a run may do: import no code and ask no hub, unless the user named it in this command or allows it."""

from dap.errors import DapError
from dap.specs.runs import EvaluateSpec, ModelSpec, PruneSpec, Spec


def names_its_model(spec: Spec | ModelSpec | str) -> bool:
    """Whether a specification says itself which dense model it is about; otherwise only a folder does.

    >>> names_its_model(PruneSpec("runs/dense")), names_its_model(PruneSpec(ModelSpec("mine:build", "digits")))
    (False, True)
    """
    if isinstance(spec, PruneSpec | EvaluateSpec):
        return names_its_model(spec.dense if isinstance(spec, PruneSpec) else spec.run)
    return not isinstance(spec, str)


def check_code(dense: object, trust_code: bool) -> None:
    """Refuse a model whose factory would have to be imported, if its code is not trusted."""
    if isinstance(dense, ModelSpec) and ":" in dense.model and not trust_code:
        raise DapError(
            f"the run's model is made by code, {dense.model}, which this command does not name: "
            "allow its import with --trust-code (trust_code=True)"
        )
