"""What a round asks: the public side sends it, and the teacher answers with noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from .errors import InvalidInput
from .messages import ExtractorSpec

LabelKind = Literal["class", "attributes", "value"]  # of label_kinds.py


@dataclass(frozen=True, kw_only=True)
class Basis:
    """Statistics of PUBLIC rows that a round's extractor gets: so many axes, or landmarks.

    No axes leave the features as they are. ``lengths``: whether features keep theirs, up to a
    radius.
    """

    kind: Literal["axes", "landmarks"]
    count: int
    lengths: bool = False


@dataclass(frozen=True, kw_only=True)
class QueryForm:
    """What a query is. Each kind of question has a class of its own, with the fields it needs."""

    matrix: ClassVar[Literal["cells", "weights"] | None]  # of wall/matrices.py; None: a row

    @property
    def basis(self) -> Basis | None:
        """What the extractor gets; None: features as they are."""
        return None

    @property
    def rows(self) -> int:
        """Rows of what is released for a query."""
        return 1

    def require(self, spec: ExtractorSpec, dimensions: int) -> None:
        """Raise InvalidInput if the extractor lacks what the question needs, or has too much."""

    def summed(self, custodians: int) -> Self:
        """The question with the noise of a sum over so many custodians, each of whom adds all."""
        return self


@dataclass(frozen=True, kw_only=True)
class RowForm(QueryForm):
    """A query is a public row.

    ``landmarks``: public rows whose features the extractor holds, at most; 0 for none.
    """

    matrix = None
    landmarks: int = 0

    @property
    def basis(self) -> Basis | None:
        return Basis(kind="landmarks", count=self.landmarks) if self.landmarks else None

    def require(self, spec: ExtractorSpec, dimensions: int) -> None:
        if self.landmarks and len(spec.landmark_rows(dimensions)) > self.landmarks:
            size = f"{len(spec.landmarks) // dimensions} rows"
            raise InvalidInput("extractor.landmarks", f"at most {self.landmarks} rows", size)


@dataclass(frozen=True, kw_only=True)
class MatrixForm(QueryForm):
    """A query is a public matrix that all records are counted by.

    A row gets a label if the best class leads the next by more than ``margin``. ``noise``: the
    scale of each number's noise, public; None if the budget does not decide it yet.
    """

    noise: float | None = None
    margin: float = 0.0

    @property
    def deviation(self) -> float:
        """The scale of the noise, which the budget has decided."""
        assert self.noise is not None
        return self.noise

    def shape(self, dimensions: int, outputs: int) -> tuple[int, int]:
        """The matrix's shape for features of ``dimensions`` and so many outputs."""
        raise NotImplementedError

    def summed(self, custodians: int) -> Self:
        return replace(self, noise=self.noise and self.noise * math.sqrt(custodians))


@dataclass(frozen=True, kw_only=True)
class CellsForm(MatrixForm):
    """A query is a set of cells, which serve all rows in them.

    A record votes in its ``neighbours`` nearest cells, and a row adds the noisy counts of its
    ``row_neighbours``. ``centroids``: cells of a set; 0: ``bins`` for each output. Counts are in
    1 / ``parts`` votes. ``noise`` and ``margin`` are in votes. ``bins``: of a model's score, by
    which records are counted; 1: by right and wrong.
    """

    matrix = "cells"
    centroids: int
    row_neighbours: int = 1
    parts: int = 1
    neighbours: int = 1
    bins: int = 1

    @property
    def rows(self) -> int:
        return self.centroids or 1

    def shape(self, dimensions: int, outputs: int) -> tuple[int, int]:
        return self.centroids or outputs * self.bins, dimensions


@dataclass(frozen=True, kw_only=True)
class SumsForm(MatrixForm):
    """A query is weights of a linear model of ``labels``, and gets a noisy sum of gradients.

    ``steps``: weights of a round, one after another; ``clip``: of the mechanism, with which the
    model is fitted, too; ``axes``: principal axes of the public rows' features that the model looks
    at, all features if None; ``gain``: sums are of so many times the gradients, clipped. ``noise``
    is in sensitivities of a sum, ``margin`` a probability.
    """

    matrix = "weights"
    steps: int
    clip: float = 1.0
    labels: LabelKind = "class"
    axes: int | None = None
    gain: int = 1

    @property
    def basis(self) -> Basis | None:
        lengths = self.labels == "value"
        if self.axes is None and not lengths:
            return None
        return Basis(kind="axes", count=self.axes or 0, lengths=lengths)

    def shape(self, dimensions: int, outputs: int) -> tuple[int, int]:
        return dimensions + 1, outputs


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """What a private score is asked by."""

    slot: int  # the entry of the plan that pays
    form: CellsForm
    choose: bool  # whether it chooses among the rounds


@dataclass(frozen=True, kw_only=True)
class Round:
    """What asking and training need of a round."""

    number: int  # counted from 1
    slot: int  # the entry of the plan that pays
    queries: int | None  # rows to ask about; None: all
    once: bool  # whether it has one price, whatever the number of rows
    form: QueryForm  # what its mechanism asks, with the noise that the budget decides
    seed: int  # of its public randomness
    as_before: bool = False  # whether it asks as the round before it in its period
    period: int = 1  # of the records, counted from 1
    periods: int = 1  # of the plan
