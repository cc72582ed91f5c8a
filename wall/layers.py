"""Layers of networks that torch does not have."""

import math

import torch
from torch import nn

from .hog import BLOCK, CLIP, EPSILON, ORIENTATIONS
from .matrices import MAX_ENTRY
from .messages import DECIDED
from .preprocessing import LARGEST_PIXEL


class Enlarged(nn.Module):
    """A network of colour images of one size, given images of another, or grey ones."""

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self.network, self.size = network, size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.interpolate(x, (self.size, self.size), mode="bilinear", antialias=True)
        return self.network(x.expand(-1, 3, -1, -1))


class Stages(nn.Module):
    """Averages over the image of a timm EfficientNet's last two stages and of its last layer."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = dict(self.network.named_children())
        x, pooled = part["bn1"](part["conv_stem"](x)), []
        for stage in part["blocks"].children():
            x = stage(x)
            pooled.append(x.mean(dim=(2, 3)))
        last = part["bn2"](part["conv_head"](x)).mean(dim=(2, 3))
        return torch.cat([*pooled[-2:], last], dim=1)


class Beside(nn.Module):
    """Features of two networks side by side, each kind times its own factor.

    If ``mirrored``, they are means over an image and its mirror image.
    """

    def __init__(self, first: nn.Module, second: nn.Module, mirrored: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.mirrored = first, second, mirrored
        self.register_buffer("factors", torch.ones(2))
        self.factors: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self._of(x)
        return (features + self._of(x.flip(3))) / 2 if self.mirrored else features

    def _of(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.first(x) * self.factors[0], self.second(x) * self.factors[1]], dim=1)


class Decision(nn.Module):
    """Decisions by logits, as their ``prefix`` says.

    Classes: 1 for the largest logit of a row, 0 for all others. Attributes: 1 for a positive logit,
    else -1. A value: from -1 to 1, and a second number that makes the row's length 1.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.prefix == DECIDED["value"]:
            value = x.clamp(-1, 1)
            return torch.cat([value, (1 - value**2).sqrt()], dim=1)
        if self.prefix == DECIDED["attributes"]:
            return torch.where(x > 0, 1.0, -1.0)
        return (x == x.amax(dim=1, keepdim=True)).to(x.dtype)


class Levels(nn.Module):
    """How many of the thresholds ``edges`` [scores, MAX_ENTRY] each score is above, in parts of
    MAX_ENTRY, and a second number for each that makes the row's length the root of ``scores``.

    A score is an attribute's logit, or the second logit less the first if ``edges`` has one row.
    """

    def __init__(self, scores: int) -> None:
        super().__init__()
        self.edges = nn.Parameter(torch.full((scores, MAX_ENTRY), torch.finfo(torch.float32).max))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = x if x.shape[1] == len(self.edges) else x[:, 1:2] - x[:, :1]
        level = (scores[:, :, None] > self.edges).to(x.dtype).sum(dim=2) / MAX_ENTRY
        return torch.cat([level, (1 - level**2).sqrt()], dim=1)


class FourierLayer(nn.Linear):
    """Cosines of random projections of vectors (Rahimi and Recht 2007)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cos(super().forward(x))


class BinsLayer(nn.Module):
    """Vectors, and beside them the heights of the bins that projections of them are in, or 0."""

    def __init__(self, columns: int, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count, columns))
        self.lower, self.upper, self.height = (nn.Parameter(torch.zeros(count)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        projected = nn.functional.linear(x, self.weight)
        inside = (projected >= self.lower) & (projected < self.upper)
        return torch.cat([x, inside * self.height], dim=1)


class Shortened(nn.Module):
    """Vectors divided by the radius, or by their length if it is more, times the root of their
    number of entries.
    """

    def __init__(self) -> None:
        super().__init__()
        self.radius = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = torch.maximum(x.norm(dim=1, keepdim=True), self.radius.clamp_min(1e-15))
        return x * (x.shape[1] ** 0.5 / length)


class Trees(nn.Module):
    """Vectors, and beside them sums of the leaves that they reach in trees.

    A tree is complete: the children of node i are 2 i + 1 and 2 i + 2, the second if the node's
    column is above its threshold. Any tensors are trees, since a column is taken for the nearest
    that there is. Trees add to the sums in turn.
    """

    def __init__(self, sums: int, each: int, depth: int) -> None:
        super().__init__()
        self.sums, self.depth, nodes = sums, depth, 2**depth - 1
        self.column, self.threshold = (
            nn.Parameter(torch.zeros(sums * each, nodes)) for _ in range(2)
        )
        self.leaf = nn.Parameter(torch.zeros(sums * each, nodes + 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        trees, nodes = self.threshold.shape
        columns = self.column.clamp(0, x.shape[1] - 1).long().flatten()
        tree = torch.arange(trees, device=x.device)
        node = torch.zeros(x.shape[0], trees, dtype=torch.long, device=x.device)
        for _ in range(self.depth):
            at = tree * nodes + node
            above = x.gather(1, columns[at]) > self.threshold.flatten()[at]
            node = 2 * node + 1 + above
        leaves = self.leaf.flatten()[tree * (nodes + 1) + node - nodes]
        return torch.cat([x, leaves.unflatten(1, (-1, self.sums)).sum(dim=1)], dim=1)


class Hog(nn.Module):
    """Histograms of oriented gradients, float32 [n, d], of images float32 [n, c, h, w] in 0..1.

    They are those of wall/hog.py but for rounding. There are no weights.
    """

    def __init__(self, cells: tuple[int, int]) -> None:
        super().__init__()
        self.cells = cells

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pixels, pad = (x * LARGEST_PIXEL).round(), nn.functional.pad
        down = pad(pixels[:, :, 2:] - pixels[:, :, :-2], (0, 0, 1, 1))
        across = pad(pixels[..., 2:] - pixels[..., :-2], (1, 1))
        lengths, strongest = (down**2 + across**2).max(dim=1, keepdim=True)
        down, across = down.gather(1, strongest), across.gather(1, strongest)
        up = torch.where((down < 0) | ((down == 0) & (across < 0)), -1.0, 1.0)
        edges = [k * math.pi / ORIENTATIONS for k in range(1, ORIENTATIONS)]
        beyond = [up * (math.cos(a) * down - math.sin(a) * across) >= 0 for a in edges]
        bins = torch.cat(beyond, dim=1).sum(dim=1, keepdim=True)
        each = [(bins == k) * lengths.sqrt() for k in range(ORIENTATIONS)]
        means = nn.functional.avg_pool2d(torch.cat(each, dim=1), self.cells).permute(0, 2, 3, 1)
        height, width = means.shape[1] - BLOCK + 1, means.shape[2] - BLOCK + 1
        corners = [(y, x) for y in range(BLOCK) for x in range(BLOCK)]
        blocks = torch.cat([means[:, y : y + height, x : x + width] for y, x in corners], dim=3)
        for largest in (CLIP, 1.0):  # a least length, since ONNX leaves out what adds so little
            length = (blocks**2).sum(dim=3, keepdim=True).sqrt().clamp(min=math.sqrt(EPSILON))
            blocks = (blocks / length).clamp(max=largest)
        return blocks.flatten(1)
