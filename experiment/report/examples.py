"""Public images of a finished run as the teacher met them: the first it answered, and the first it abstained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from labelwall.experiment.report import plots
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.wall.datasets.sources import DataConfig, PublicData, read_public
from labelwall.wall.errors import LabelwallError
from labelwall.wall.labels.attributes import said
from labelwall.wall.labels.values import Scale
from labelwall.wall.messages import ABSTAINED, Outcome

MOST = 10  # images shown for each round and outcome


@dataclass(frozen=True)
class Example:
    """``image``: a PNG file; ``given``: the class released for it, None for none; ``true``: its own, None where unknown.

    Where rows have attributes, both name those present, and those unsaid with a question mark. A value given stands with the true
    one beside it in ``given``: no noisy one is right or wrong.
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
    data: DataConfig, folder: RunFolder, rounds: int, class_names: Sequence[str]
) -> list[RoundExamples]:
    """Examples of rounds 1 to ``rounds``.

    Empty where inputs are feature vectors, or where the public rows are gone or fewer than were asked. Nothing is downloaded.
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
        _of_round(number, public, *answers, class_names, data.scale)
        for number, answers in enumerate(stored, start=1)
    ]


def _named(label: np.ndarray, names: Sequence[str]) -> str | None:
    """A label, int64 [] or [c], for a reader; None where nothing is said."""
    if not said(label[np.newaxis])[0]:
        return None
    if label.ndim == 0:
        return names[int(label)]
    shown = [
        name + "?" * (bit == ABSTAINED)
        for name, bit in zip(names, label.tolist(), strict=True)
        if bit
    ]
    return ", ".join(shown) or "none of them"


def _of_value(public: PublicData, row: int, label: np.ndarray, scale: Scale) -> Example:
    """One row of a value, ``label`` int64 []."""
    true = None if public.labels is None else f"{public.labels[row]:.4g}"
    if label == ABSTAINED:
        return Example(plots.png(public.inputs[row]), None, true)
    given = f"{scale.values(label):.4g}"
    return Example(
        plots.png(public.inputs[row]), given if true is None else f"{given} (true {true})", None
    )


def _of_round(
    number: int,
    public: PublicData,
    rows: np.ndarray,
    labels: np.ndarray,
    outcomes: np.ndarray,
    names: Sequence[str],
    scale: Scale | None,
) -> RoundExamples:
    """``rows``, ``labels``: int64 [n]; ``outcomes``: uint8 [n], as the run folder stores them."""

    def one(row: int, label: np.ndarray) -> Example:
        if scale is not None:
            return _of_value(public, row, label, scale)
        true = None if public.labels is None else _named(public.labels[row], names)
        return Example(plots.png(public.inputs[row]), _named(label, names), true)

    def first(outcome: Outcome) -> list[Example]:
        return [one(int(rows[at]), labels[at]) for at in np.flatnonzero(outcomes == outcome)[:MOST]]

    return RoundExamples(number, first(Outcome.ANSWERED), first(Outcome.ABSTAINED))
