"""Public images of a finished run as the teacher met them: the first it answered, and the first it
abstained on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...wall.datasets.sources import DataConfig, PublicData, read_public
from ...wall.errors import LabelwallError
from ...wall.labels.base import LabelSpace
from ...wall.messages import Outcome
from ..run.run_folder import RunFolder
from . import plots

MOST = 10  # images shown for each round and outcome


@dataclass(frozen=True)
class Example:
    """``image``: a PNG file; ``given``: the label released for it, ``true``: its own, as
    LabelSpace.example words them.
    """

    image: bytes
    given: str | None
    true: str | None


@dataclass(frozen=True)
class RoundExamples:
    """The first images of one round, in request order."""

    number: int
    answered: list[Example]
    abstained: list[Example]


def examples(
    data: DataConfig, folder: RunFolder, rounds: int, space: LabelSpace
) -> list[RoundExamples]:
    """Examples of rounds 1 to ``rounds``.

    Empty where inputs are feature vectors, or where the public rows are gone or fewer than were
    asked. Nothing is downloaded.
    """
    try:
        public = read_public(replace(data, download=False))
    except LabelwallError:
        return []
    if public.inputs.ndim != 4:
        return []
    stored = [folder.load_answers(number) for number in range(1, rounds + 1)]
    if any((rows >= len(public.inputs)).any() for rows, _, _ in stored):
        return []
    return [
        _of_round(number, public, *answers, space) for number, answers in enumerate(stored, start=1)
    ]


def _of_round(
    number: int,
    public: PublicData,
    rows: np.ndarray,
    labels: np.ndarray,
    outcomes: np.ndarray,
    space: LabelSpace,
) -> RoundExamples:
    """``rows``, ``labels``: int64 [n] or [n, c]; ``outcomes``: uint8 [n], as the run folder stores
    them.
    """

    def one(row: int, label: np.ndarray) -> Example:
        truth = None if public.labels is None else public.labels[row]
        return Example(plots.png(public.inputs[row]), *space.example(label, truth))

    def first(outcome: Outcome) -> list[Example]:
        return [one(int(rows[at]), labels[at]) for at in np.flatnonzero(outcomes == outcome)[:MOST]]

    return RoundExamples(number, first(Outcome.ANSWERED), first(Outcome.ABSTAINED))
