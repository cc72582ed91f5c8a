"""The processes that share a training.

Each computes its rows of a batch, and all see the losses of the complete batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.autograd.function import FunctionCtx


@dataclass(frozen=True)
class Ranks:
    """``size`` processes, of which this is number ``rank``.

    Data-parallel training averages the processes' gradients. So each of them computes the loss of
    the WHOLE batch, in which only its own rows carry a gradient, times ``size``: the average is
    then the gradient of that loss, whatever it is made of (means over rows that count, the entropy
    of a mean prediction), and all processes log one value.
    """

    rank: int = 0
    size: int = 1

    def part(self, rows: int) -> slice:
        """This process's part of a batch of ``rows`` rows.

        The parts of all processes are the batch, in order; their sizes differ by at most one.
        """
        return slice(rows * self.rank // self.size, rows * (self.rank + 1) // self.size)

    def whole(self, own: torch.Tensor, rows: int) -> torch.Tensor:
        """The outputs of all ``rows`` of a batch, [rows, c].

        ``own``: this process's part, [part, c], the only one with a gradient.
        """
        if self.size == 1:
            return own
        sizes = [_length(Ranks(rank, self.size).part(rows)) for rank in range(self.size)]
        padded = F.pad(own.detach(), (0, 0, 0, max(sizes) - len(own))).contiguous()
        found = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(found, padded)
        parts = [part[:size] for part, size in zip(found, sizes, strict=True)]
        parts[self.rank] = own
        return torch.cat(parts)

    def total(self, own: torch.Tensor) -> torch.Tensor:
        """The sum of every process's ``own`` number, with the gradient of this one's."""
        if self.size == 1:
            return own
        everyone = own.detach().clone()
        dist.all_reduce(everyone)
        return own + (everyone - own.detach())


ALONE = Ranks()  # a training in one process


def exact(x: torch.Tensor) -> torch.Tensor:
    """``x`` in float32, or as it is where that is more exact.

    Half precision is for products; statistics and losses are sums.
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _length(part: slice) -> int:
    return int(part.stop - part.start)


class SumOverRanks(torch.autograd.Function):
    """Sum of a tensor over all processes.

    What every process makes of it counts: gradients are summed as well.
    """

    @staticmethod
    def forward(_: FunctionCtx, own: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        everyone = own.clone()
        dist.all_reduce(everyone)
        return everyone

    @staticmethod
    def backward(_: FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        everyone = gradient.clone()
        dist.all_reduce(everyone)
        return everyone
