"""Feature maps of vectors by name: networks that both sides build, and the numbers that PUBLIC rows
give them. Loads without torch: a help lists the names.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np

if TYPE_CHECKING:
    from torch import nn

FOURIER_FEATURES, ALL_BINS = 1024, 1024  # of all columns together
MOST_BINS, QUANTILES = (64, 32, 16, 8), 16  # bins of a column
LARGEST_FLOAT = float(np.finfo(np.float32).max)


class FeatureMap:
    """Features of vectors [n, columns].

    Class attributes:
        name: in settings, and on the wire.
        of_rows: whether its tensors follow from PUBLIC rows.
        stepped: whether the features have steps. They are then not whitened, and the released
            classifier is the student, since another network smooths them.
    """

    name: ClassVar[str]
    of_rows: ClassVar[bool] = False
    stepped: ClassVar[bool] = False

    def trunk(self, columns: int) -> tuple[nn.Module, int]:
        """(a network of rows float32 [n, columns], the number of its features).

        In eval mode a row's features depend on that row alone. Others send its tensors: finite
        numbers of any size make no error.
        """
        raise NotImplementedError

    def tensors(self, columns: int, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The network's tensors by name, whose features are of mean square 1 or about so.

        ``rows``: finite PUBLIC ones, float32 [n, columns], where they are of ``of_rows``, else [0,
        columns].
        """
        raise NotImplementedError


class Fourier(FeatureMap):
    """Random Fourier features of columns whose entries have a deviation of about 1.

    Their products are about half the Gaussian kernel of half the median distance of such rows,
    sqrt(2 d) / 2. The projections are the same in every run.
    """

    name = "fourier"

    def trunk(self, columns: int) -> tuple[nn.Module, int]:
        from .layers import FourierLayer

        return FourierLayer(columns, FOURIER_FEATURES), FOURIER_FEATURES

    def tensors(self, columns: int, rows: np.ndarray) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(0)  # noqa: TID251 - projections, which are public
        weight = rng.normal(0, 2 / math.sqrt(2 * columns), (FOURIER_FEATURES, columns))
        return {"weight": weight, "bias": rng.uniform(0, 2 * math.pi, FOURIER_FEATURES)}


class Bins(FeatureMap):
    """Columns beside bins of their entries, which are cut by PUBLIC rows.

    All bins of a column together have the variance that it has: 1.
    """

    name, of_rows, stepped = "bins", True, True

    def trunk(self, columns: int) -> tuple[nn.Module, int]:
        from .layers import BinsLayer

        return BinsLayer(columns, ALL_BINS), columns + ALL_BINS

    def tensors(self, columns: int, rows: np.ndarray) -> dict[str, np.ndarray]:
        cuts = [_cuts(rows, most) for most in MOST_BINS]
        edges = next((each for each in cuts if sum(len(e) + 1 for e in each) <= ALL_BINS), [])
        weight = np.zeros((ALL_BINS, columns), dtype=np.float32)
        lower, upper, height = np.zeros((3, ALL_BINS), dtype=np.float32)
        first = 0
        for column, own in enumerate(edges):
            if not len(own):
                continue
            bins = slice(first, first + len(own) + 1)
            place = own.searchsorted(rows[:, column], "right")
            shares = np.bincount(place, minlength=len(own) + 1) / len(rows)
            weight[bins, column] = 1.0
            lower[bins], upper[bins] = [-LARGEST_FLOAT, *own], [*own, LARGEST_FLOAT]
            height[bins] = 1 / math.sqrt(1 - float((shares**2).sum()))
            first = bins.stop
        return {"weight": weight, "lower": lower, "upper": upper, "height": height}


def _cuts(rows: np.ndarray, most: int) -> list[np.ndarray]:
    """Edges between the bins of each column of PUBLIC rows, float32. There is one bin for each of
    at most ``most`` values, quantiles of more; none for two values, which say all themselves. An
    edge lies midway between two values: a student's file scales entries in another way than a run
    does, so that a value on an edge could change its bin.
    """
    cuts = []
    for entries in rows.T:
        values = np.unique(entries)
        edges = (values[1:] + values[:-1]) / 2 if len(values) > 2 else values[:0]
        if len(values) > most:
            parts = min(QUANTILES, most)
            quantiles = np.quantile(entries, np.arange(1, parts) / parts)
            above = np.unique(values.searchsorted(quantiles))
            edges = edges[above[above > 0] - 1]
        cuts.append(edges.astype(np.float32))
    return cuts


REGISTERED: tuple[type[FeatureMap], ...] = (Fourier, Bins)
MAPS = {known.name: known() for known in REGISTERED}
