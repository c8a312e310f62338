"""Models of any size from one pruning: the dense one, those that it made, and masks between them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dap.errors import DapError
from dap.masks.allocation import global_masks
from dap.masks.attach import bake
from dap.masks.masks import Masks
from dap.structure import Channels, remove_channels

_STEPS = 200  # between a share of 0 and 1


@dataclass(frozen=True)
class Rung:
    """One model."""

    share: float  # that is cut
    masked: nn.Module  # with zeros in place
    masks: Masks | None  # None: the dense model
    whole: bool  # whether whole channels are cut

    @property
    def model(self) -> nn.Module:
        """As it is shipped: channels that are cut are gone."""
        return remove_channels(self.masked, self.masks) if self.whole and self.masks is not None else self.masked


@dataclass(frozen=True)
class Ladder:
    """From the dense model to the sparsest, by the share of weights or, of whole channels, of FLOPs that is cut.

    A mask between two others cuts what the sparser one cuts and the denser one does not, small weights first. Where
    weights have moved, and in patterns, there is nothing between.
    """

    dense: nn.Module
    made: Mapping[float, tuple[nn.Module, Masks]]  # by share
    channels: Channels | None = None  # where whole ones are cut
    fixed: bool = False  # there is nothing between

    @property
    def shares(self) -> list[float]:
        grid = [] if self.fixed else [step / _STEPS for step in range(1, _STEPS)]
        return sorted({0.0, *self.made, *(share for share in grid if share < self.highest)})

    @property
    def highest(self) -> float:
        """The share that the sparsest model cuts."""
        return max(self.made, default=0.0)

    @property
    def base(self) -> Rung:
        """The dense model."""
        return Rung(0.0, self.dense, None, self.channels is not None)

    def at(self, share: float) -> Rung:
        """The model that cuts this share, or the next that there is."""
        whole = self.channels is not None
        if share in self.made:  # also at 0, where training went on
            return Rung(share, *self.made[share], whole)
        if share == 0:
            return self.base
        if share < 0:
            raise DapError(f"the share to cut is {share}; it must be at least 0")
        if share > self.highest:
            most = f"the sparsest model cuts {self.highest:.1%}"
            raise DapError(f"a share of {share:.1%} is out of reach, {most}: prune to a higher sparsity")
        above = min(made for made in self.made if made > share)
        if self.fixed:
            return self.at(above)
        below = max((made for made in self.made if made < share), default=None)
        masks = self._between(None if below is None else self.made[below][1], self.made[above][1], share)
        return Rung(share, bake(self.dense, masks), masks, whole)

    def _between(self, denser: Masks | None, sparser: Masks, share: float) -> Masks:
        sizes = {name: self.dense.get_parameter(name).detach().abs().float() for name in sparser}
        if self.channels is not None:
            scores = self.channels.scores_of({name: size for name, size in sizes.items() if size.ndim > 1})
            before = torch.ones(len(scores), device="cpu").bool() if denser is None else self.channels.kept(denser)
            scores = _ordered(scores, before, self.channels.kept(sparser), above=scores.max() + 1)
            return self.channels.masks(self.channels.cut(scores, share))
        above = torch.stack([size.max() for size in sizes.values()]).max() + 1  # all layers are ranked together
        ranks = {
            name: _ordered(size, torch.ones_like(size).bool() if denser is None else denser[name], sparser[name], above)
            for name, size in sizes.items()
        }
        return global_masks(ranks, share)

    def first(self, meets: Callable[[Rung], bool], on_try: Callable[[int, int, str], None] | None = None) -> Rung:
        """The least that is cut to meet a wish, which a sparser model meets, too.

        `on_try` hears how many of how many models were tried, and which.
        """
        shares = self.shares
        low, high, tried = 0, len(shares), 0
        found: Rung | None = None
        while low < high:
            middle = (low + high) // 2
            rung = self.at(shares[middle])
            if meets(rung):
                found, high = rung, middle
            else:
                low = middle + 1
            tried += 1
            if on_try is not None:
                on_try(tried, tried + math.ceil(math.log2(high - low + 1)), f"{rung.share:.1%} cut")
        if found is None:
            raise DapError(f"no model meets the wish, not even the one that cuts {shares[-1]:.1%}: prune further")
        return found


def _ordered(sizes: Tensor, before: Tensor, after: Tensor, above: Tensor) -> Tensor:
    """Scores: what the sparser mask keeps comes first, then what only the denser one keeps, by its size.

    No size is as large as `above`.
    """
    return torch.where(after.to(sizes.device), above, torch.where(before.to(sizes.device), sizes, -1.0))
