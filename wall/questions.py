"""What a round asks: the public side sends it, and the teacher answers with noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .errors import InvalidInput
from .messages import ExtractorSpec

LabelKind = Literal["class", "attributes", "value"]  # of label_kinds.py


@dataclass(frozen=True)
class QueryForm:
    """What a query is: a public row, or a public matrix that all records are counted by.

    Cells (wall/matrices.py), ``centroids`` of them in a set (0: one for each class), serve all rows
    in them: a record votes in its ``neighbours`` nearest, and a row adds the noisy counts of its
    ``row_neighbours``. Weights, ``steps`` of them in a round, give a linear model of ``labels``, a
    label space's kind. Either labels a row where the best class leads the next by more than
    ``margin``, noisy votes or a probability. ``clip``: the mechanism's, which the model is fitted
    with; ``axes``: principal axes of the public rows' features that it looks at, all features where
    None.

    ``landmarks``: public rows whose features the extractor holds, at most; 0 for none.

    ``noise``: the scale of each number's noise, public: votes for cells, sensitivities of a sum for
    weights; None where the budget does not decide it yet. ``parts``: counts of cells are in
    1 / ``parts`` votes. ``gain``: sums are of so many times the gradients, clipped.
    """

    centroids: int | None = None
    row_neighbours: int = 1
    margin: float = 0.0
    noise: float | None = None
    steps: int | None = None
    clip: float = 1.0
    labels: LabelKind = "class"
    axes: int | None = None
    parts: int = 1
    gain: int = 1
    landmarks: int = 0
    neighbours: int = 1

    def require(self, spec: ExtractorSpec, dimensions: int) -> None:
        """Raise InvalidInput where the extractor has no landmarks, or more than are allowed."""
        if self.landmarks and len(spec.landmark_rows(dimensions)) > self.landmarks:
            size = f"{len(spec.landmarks) // dimensions} rows"
            raise InvalidInput("extractor.landmarks", f"at most {self.landmarks} rows", size)

    @property
    def matrix(self) -> str | None:
        """The kind of matrix (wall/matrices.py); None where a query is a row."""
        if self.centroids is not None:
            return "cells"
        return None if self.steps is None else "weights"

    def shape(self, dimensions: int, outputs: int) -> tuple[int, int]:
        """The matrix's shape for features of ``dimensions`` and so many outputs."""
        if self.centroids is None:
            return dimensions + 1, outputs
        return self.centroids or outputs, dimensions


@dataclass(frozen=True)
class Scoring:
    """What a private score is asked by."""

    slot: int  # the entry of the plan that pays
    form: QueryForm
    choose: bool  # whether it chooses among the rounds


@dataclass(frozen=True)
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
