"""The pruning methods and how each is used unless a user says otherwise. Imports no torch."""

from dataclasses import dataclass

SPARSITIES = (0.2, 0.4, 0.6, 0.8, 0.9)
FLOPS = (0.3, 0.5, 0.7)  # where a sparsity is a share of FLOPs
# Allocations of whole coupled channels, until the share of FLOPs is gone: wherever they are, or (True) the same share
# of every group.
BY_FLOPS = {"flops": False, "flops_uniform": True}


@dataclass(frozen=True)
class Method:
    """All that is known about a method. A new one is a file in `dap.criteria` and a line here: see docs/pruning.md."""

    title: str
    criterion: str  # package.module:function, a `dap.criteria.Criterion`
    allocation: str = "global"  # "path": the masks that mask learning passed through
    finetuned: bool = False  # it is defined with fine-tuning
    learns: bool = False  # masks, by mask learning: its criterion takes a `PruneConfig` and milestones
    trains: bool = False  # a copy of the model, for its scores: its criterion takes a `TrainConfig`
    looks: bool = False  # at a number of batches
    by_channel: bool = False  # its scores are those of whole output channels
    alpha: float | None = None  # of mask learning, if the method sets it
    whole: bool = False  # it cuts nothing
    shares: tuple[float, ...] = SPARSITIES  # that are cut unless a user says otherwise

    def called(self, finetuned: bool | None = None, raw: bool = False) -> str:
        """The title of a run; `finetuned` if it is not the method's own way; of its raw masks, where it has both."""
        tuned = self.finetuned if finetuned is None else finetuned
        title = f"{self.title}, raw masks" if raw else self.title
        return f"{title}, fine-tuned" if tuned and not self.whole else title

    def sparsities(self, allocation: str) -> tuple[float, ...]:
        """Those that are cut unless a user says otherwise; of FLOPs fewer can go than of weights."""
        return (0.0,) if self.whole else FLOPS if allocation in BY_FLOPS else self.shares


METHODS: dict[str, Method] = {
    "control": Method("Dense, trained on", "dap.criteria.control:control", finetuned=True, whole=True),
    "random": Method("Random", "dap.criteria.random:random"),
    "magnitude": Method("Magnitude", "dap.criteria.magnitude:magnitude"),
    "taylor": Method("Taylor", "dap.criteria.taylor:taylor", looks=True),
    "wanda": Method("Wanda-style", "dap.criteria.wanda:wanda", "per_layer", looks=True),
    "movement": Method("Movement (weights move)", "dap.criteria.movement:movement", trains=True),
    "dap": Method("DAP", "dap.criteria.learned:dap", "path", learns=True),
    "agnostic": Method("DAP, α = 0", "dap.criteria.learned:agnostic", "path", learns=True, alpha=0.0),
    "ior": Method(
        "IoR (a reconstruction)", "dap.criteria.ior:ior", "global_channels",
        finetuned=True, looks=True, by_channel=True, shares=(0.5, 0.7),
    ),
    "dss": Method(
        "DSS (sources only)", "dap.criteria.dss:dss", "channels",
        finetuned=True, looks=True, by_channel=True, shares=(0.1,),
    ),
}  # fmt: skip
LEAD = METHODS["dap"]  # what reports set against the dense model first
