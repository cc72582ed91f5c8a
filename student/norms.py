"""Batch norm over the rows of all processes. torch's own synchronised norm runs on GPUs alone."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..wall.errors import InvalidInput
from .ranks import SumOverRanks, exact

# The last is timm's: a norm, then dropping and activation
KNOWN = (
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "BatchNormAct2d",
)


class SharedNorm(_BatchNorm):
    """A batch norm with the statistics of the complete batch across processes.

    It has the same tensors as ``norm``, by name.

    With one process it is ``norm``, up to rounding. In evaluation it uses the running statistics,
    as any.
    """

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__(
            norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats
        )
        self.load_state_dict(norm.state_dict(), strict=False)
        self.drop, self.act = (getattr(norm, name, nn.Identity()) for name in ("drop", "act"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, channels, ...] -> the same shape and dtype.

        The statistics are float32, or more exact where the input is.
        """
        normed = self._normalised(exact(x)).to(x.dtype) if self.training else super().forward(x)
        return self.act(self.drop(normed))

    def _normalised(self, x: torch.Tensor) -> torch.Tensor:
        others, shape = [0, *range(2, x.ndim)], [1, -1, *[1] * (x.ndim - 2)]
        own = torch.cat([x.sum(others), x.new_tensor([x.numel() / x.shape[1]])])
        *_, count = summed = SumOverRanks.apply(own)
        mean = summed[:-1] / count
        # First the mean, then the squares around it: nothing cancels
        centred = x - mean.view(shape)
        variance = SumOverRanks.apply(centred.square().sum(others)) / count
        if self.track_running_stats:
            self._follow(mean.detach(), (variance * count / (count - 1)).detach())
        scaled = centred * torch.rsqrt(variance + self.eps).view(shape)
        return scaled * self.weight.view(shape) + self.bias.view(shape) if self.affine else scaled

    @torch.no_grad()
    def _follow(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)

    def _check_input_dim(self, _: torch.Tensor) -> None:
        """Whatever the norm in its place takes."""


def require_shareable(network: nn.Module, x: torch.Tensor) -> None:
    """Raises InvalidInput unless a step of several processes equals that of one.

    This requires batch norms of known kinds, and no random layers.

    Each process would draw for its own rows, and not what one process draws for all. Tried on
    ``x``, inputs as for the network.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        tried = share_norms(copy.deepcopy(network)).train()
        for norm in (module for module in tried.modules() if isinstance(module, SharedNorm)):
            norm.eval()
        found = []
        for seed in range(2):
            torch.manual_seed(seed)
            found.append(tried(x))
    if not torch.equal(*found):
        raise InvalidInput(
            "student.backbone",
            "a network without random layers, such as dropout, with several devices",
            "random",
        )


def share_norms(module: nn.Module) -> nn.Module:
    """``module`` with every batch norm in it a SharedNorm.

    Raises InvalidInput for a kind that is none of KNOWN.
    """
    if isinstance(module, _BatchNorm):
        if type(module).__name__ not in KNOWN:
            kinds = ", ".join(KNOWN)
            rule = f"a network whose batch norms are of the kinds {kinds}, with several devices"
            raise InvalidInput("student.backbone", rule, type(module).__name__)
        return SharedNorm(module)
    for name, child in module.named_children():
        setattr(module, name, share_norms(child))
    return module
