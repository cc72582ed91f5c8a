"""Reverse kNN (Li et al. 2022): one noisy histogram of the records' votes in public cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from ...wall.errors import InvalidInput
from ...wall.matrices import MAX_CELLS
from ...wall.messages import ABSTAINED, Outcome, Value
from ...wall.unit import Unit
from ..accounting.plan import Release
from ..noise.scales import more_noise
from .base import Mechanism, QueryForm
from .fields import noise_scale, param

if TYPE_CHECKING:
    from ..noise.entropy import Entropy
    from .voters import Voters

HISTOGRAM = "histogram"
MAX_NEIGHBOURS = 64
MAX_PARTS = 1 << 12  # of a vote; what a person gets by default


@dataclass(frozen=True)
class ReverseKnn(Mechanism):
    """Votes of all private records in public cells, released once a round with noise on all counts.

    Guarantee, for one histogram under add/remove of one record: a record adds 1 to the count of its
    label in ``neighbours`` different cells and changes nothing else, so the L2 sensitivity is
    sqrt(neighbours) for any number of cells; the cost is that of one Gaussian release
    (``curves.gaussian_rdp``; the discrete privacy loss distribution is exact up to its grid for 1,
    2 or 3 neighbours and whole votes). A person adds a vector that is no longer than a row's
    (``counts.shared_votes``). Cells without records get the same noise as all others. All fields
    are publishable and fixed without looking at private rows.
    """

    kind: Literal["reverse_knn"] = "reverse_knn"
    cells: int = param(
        150,
        "public cells of a round; clusters of the public rows' features",
        unit="a count",
        ge=1,
        le=MAX_CELLS,
    )
    neighbours: int = param(
        1,
        "nearest cells that each record votes in; more of them smooth the counts, and the noise "
        "for the same epsilon grows with their square root",
        unit="a count",
        ge=1,
        le=MAX_NEIGHBOURS,
    )
    sigma: float | None = noise_scale("every cell's count of every class")
    margin: float = param(
        0.0,
        "a public row is labelled only if its best class leads the next by more; free",
        unit="noisy votes",
        ge=0,
    )
    reach: int = param(
        1,
        "nearest cells whose noisy counts a public row adds up; free; small cells are purer, and "
        "adding their neighbours' votes makes up for their few votes",
        unit="a count",
        ge=1,
        le=MAX_NEIGHBOURS,
    )
    parts: int | None = param(
        None,
        "votes are multiples of 1 / parts, so that a person can share its votes among the cells of "
        "its rows; null: 1, or 4096 with privacy.unit: person",
        unit="a count",
        ge=1,
        le=MAX_PARTS,
    )

    stages = (HISTOGRAM,)
    by_unit = ("parts",)
    sharded = True
    persons = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("neighbours", "reach"):
            if vars(self)[name] > self.cells:
                raise InvalidInput(f"mechanism.{name}", "at most cells", vars(self)[name])

    def for_unit(self, unit: Unit) -> Self:
        """See ``Mechanism.for_unit``: a person's votes have parts."""
        return replace(self, parts=MAX_PARTS) if unit == "person" and not self.parts else self

    @property
    def vote(self) -> int:
        """A whole vote, in the units of the counts."""
        return self.parts or 1

    @property
    def noise(self) -> float:
        """The noise's scale in the units of the counts."""
        return self.require("sigma") * self.vote

    @property
    def query_form(self) -> QueryForm:
        """The cells of a round."""
        return QueryForm(self.cells, self.reach, self.margin, self.sigma, parts=self.vote)

    def with_noise(self, level: float, asked: int) -> ReverseKnn:
        """See ``Mechanism.with_noise``. A histogram moves by sqrt(neighbours)."""
        return self.with_values(sigma=more_noise(level * math.sqrt(self.neighbours)))

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """The price of ``asked`` noisy histograms; each of them is answered."""
        noisy = {
            "sigma": self.noise,
            "sensitivity": self.vote * math.sqrt(self.neighbours),
            "sampling_probability": 1.0,
        }
        return (Release(HISTOGRAM, "gaussian", noisy, asked),)

    def draw(self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """Noisy histograms of sets of cells, in 1 / parts votes: int64 [n_queries, m * n_classes].

        ``keys``: the sets' identities, charged for this stage already.
        """
        votes = voters.cell_votes(self.neighbours, self.vote)
        return votes + entropy.discrete_gaussian(self.noise, keys, stage, votes.shape[1])

    def outcome(self, results: Mapping[str, Value]) -> tuple[Outcome, int]:
        """A set of cells has counts and no label; its rows get labels by ``wall.cells.inherit``."""
        return Outcome.ANSWERED, ABSTAINED
