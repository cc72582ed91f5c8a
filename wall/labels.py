"""What a row's label can be: one interface that classes, attributes and values implement.

A label takes three forms:

- truth: what a file holds, such as a class's index, 0 and 1 by attribute, or a number;
- code: the label of a private row, one int64 in 0..num_labels-1, a function of that row alone;
- label: what is released and trained on, int64 [n] or [n, c], ABSTAINED if nothing was released.

``encode`` makes codes of truth, ``expand`` labels of codes, ``decode`` truth of labels.
"""

import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Self

import numpy as np

from .errors import InvalidInput, shape_text
from .messages import ABSTAINED

Score = dict[str, Any]  # "accuracy", a share in 0..1 or None; of values also "errors"
MISSING = {"", "?", "na", "n/a", "nan", "nat", "none", "null"}  # cells that say nothing
NO_LABEL = MISSING | {"-1"}  # if other rows tell the classes
MAX_CODE_POINT = 0x10FFFF  # of a character


class LabelSpace(ABC):
    """The labels that a data set's rows can have, public; a frozen dataclass."""

    kind: ClassVar[str]  # its name in data.labels
    form: ClassVar[str]  # what truth is, in errors
    valid: ClassVar[str]  # which entries of truth are right, in errors
    cure: ClassVar[str] = ""  # what to do about others
    names: tuple[str, ...]  # of the classes, of the attributes, or of the value

    @classmethod
    def of(cls, count: int) -> Self:
        """``count`` classes or attributes named "0", "1" and so on."""
        return cls(tuple(map(str, range(count))))  # type: ignore[call-arg]

    @property
    def causes(self) -> str:
        """Why private rows may be none that count, for a reader."""
        few = ", ".join(self.names[:6]) + (", ..." if len(self.names) > 6 else "")
        return (
            f"Usual causes: labels that are not written as the classes are ({few}), other classes, "
            "images in no class's folder, another encoding or file format; `labelwall data` shows "
            "the custodian what is dropped"
        )

    @property
    def bounds(self) -> tuple[float, ...]:
        """(low, high) of values, in their unit; empty for other labels."""
        return ()

    @property
    def outputs(self) -> int:
        """How many outputs a network has for these labels."""
        return len(self.names)

    @property
    @abstractmethod
    def num_labels(self) -> int:
        """A private row's code is an integer from 0 to this number less 1."""

    @abstractmethod
    def fits(self, truth: np.ndarray) -> bool:
        """Whether an array has the dtype and the columns of truth, as ``form`` says."""

    def canonical(self, name: str, truth: np.ndarray) -> np.ndarray:
        """Truth as int64 or float64, each entry by itself; -1 for other texts than names.

        Numbers that are not whole become -1, too. Raises InvalidInput, without the number of rows.
        """
        if not self.fits(truth):
            raise InvalidInput(name, self.form, shape_text(truth))
        if self.kind == "value":
            return truth.astype(np.float64)
        if truth.dtype.kind == "U":
            return np.array([*map(code_of(self.names), readable(truth))], dtype=np.int64)
        if truth.dtype.kind == "f":
            truth = truth.astype(np.float64)
            truth = np.where((truth == np.rint(truth)) & (abs(truth) < 2**53), truth, ABSTAINED)
        return truth.astype(np.int64)

    def encode(self, name: str, truth: np.ndarray) -> np.ndarray:
        """Codes int64 [n] of ``truth``, each a function of its own row.

        A code that ``is_code`` refuses stands for no label. Raises as ``canonical``.
        """
        return self.canonical(name, truth)

    def check_public(self, name: str, truth: np.ndarray, rows: int | None) -> np.ndarray:
        """PUBLIC ``truth`` as ``canonical`` gives it.

        Raises InvalidInput also unless each of ``rows`` rows has a label (None: any number of rows,
        but not 0).
        """
        entries = self.canonical(name, truth)
        if not len(entries) or rows not in (None, len(entries)):
            count = "at least one row" if rows is None else f"{rows} rows"
            raise InvalidInput(name, f"{self.form} of {count}", len(entries))
        named = self.numbered(entries)
        known = named.is_code(named.encode(name, entries))
        if not known.all():
            raise InvalidInput(name, self.valid, f"{truth[~known][0].tolist()}", self.cure)
        return entries

    def numbered(self, truth: np.ndarray) -> "LabelSpace":
        """This space, named by numbers if it has no names: as many as PUBLIC ``truth`` shows."""
        return self

    def is_code(self, codes: np.ndarray) -> np.ndarray:
        """Which codes stand for a label of this space: bool [n]."""
        return (codes >= 0) & (codes < self.num_labels)

    def expand(self, codes: np.ndarray) -> np.ndarray:
        """Labels of codes: int64 [n], or [n, c] of 0 and 1 for attributes."""
        return codes

    def decode(self, labels: np.ndarray) -> np.ndarray:
        """Truth of labels, with ABSTAINED (NaN for values) if there is none."""
        return labels

    def no_labels(self, rows: int) -> np.ndarray:
        """Labels of ``rows`` rows of which none was released: int64 [rows] or [rows, c]."""
        return np.full_like(self.expand(np.zeros(rows, dtype=np.int64)), ABSTAINED)

    def strata(self, labels: np.ndarray) -> np.ndarray:
        """Groups of which a training sees equal shares: int64 [n], -1 for rows without a label."""
        return np.where(has_label(labels), 0, -1)

    @abstractmethod
    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """Truth that a network's ``outputs``, float32 [n, outputs], stand for."""

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        """Probabilities of ``names`` by ``outputs``, float64 [n, outputs]; [n, 0] for values."""
        return np.zeros((len(outputs), 0))

    def certainty(self, probabilities: np.ndarray) -> np.ndarray:
        """Probability of what is predicted: float64 [n], [n, c] of attributes, [n, 0] of values."""
        return probabilities

    @abstractmethod
    def confusion(self, truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Counts of rows by true and predicted label, int64.

        [c, c] of classes, [c, 2, 2] by attribute, [CELLS, CELLS] by equal parts of the bounds.
        """

    @abstractmethod
    def tally(self, codes: np.ndarray) -> tuple[Sequence[str], np.ndarray]:
        """(names, how many of the private rows have each, int64)."""

    def score(
        self, predicted: np.ndarray, truth: np.ndarray, known: np.ndarray | None = None
    ) -> Score:
        """Quality of ``predicted`` truth, by the entries that are ``known`` (bool; None: all).

        "accuracy": the share of equal entries, None if nothing is known; "errors": of values.
        """
        right = (predicted == truth)[slice(None) if known is None else known]
        return {"accuracy": float(right.mean()) if right.size else None}

    def format_score(self, score: Score) -> str:
        """A score for a reader: "95.12% right"; "unknown" if there is none."""
        return "unknown" if score["accuracy"] is None else f"{100 * score['accuracy']:.2f}% right"

    @abstractmethod
    def text(self, label: np.ndarray) -> str | None:
        """One label, int64 [] or [c], for a reader; None if nothing was released."""

    def fields(self) -> dict[str, Any]:
        """Arguments of ``label_space`` that make this space, as JSON holds them."""
        return {"kind": self.kind, "names": list(self.names), "bounds": list(self.bounds)}


def has_truth(truth: np.ndarray) -> np.ndarray:
    """Which PUBLIC rows have a true label, of every attribute: bool [n]."""
    known = np.isfinite(truth) if truth.dtype.kind == "f" else truth >= 0
    return np.asarray(known.all(axis=tuple(range(1, truth.ndim))))


def has_label(labels: np.ndarray) -> np.ndarray:
    """Which rows have a released label, of some attribute at least: bool [n]."""
    return (labels != ABSTAINED).any(axis=tuple(range(1, labels.ndim)))


def readable(texts: np.ndarray) -> list[str]:
    """An array's texts [n]; "" for one with numbers that are no characters.

    An array can hold such a text, and Python can not.
    """
    if not texts.size:
        return []
    characters = np.ascontiguousarray(texts).view(f"{texts.dtype.byteorder}u4")
    bad = (characters.reshape(len(texts), -1) > MAX_CODE_POINT).any(axis=1)
    return list(np.where(bad, "", texts).tolist())


def written(label: object) -> str:
    """A label as it is compared: in Unicode's composed form (NFC); "" if it is missing.

    Blanks around it, and the ".0" of a whole number, are left out.
    """
    if label is None or label != label:
        return ""
    with suppress(ValueError):  # of a whole number with more digits than Python prints
        whole = isinstance(label, float) and label.is_integer()
        text = unicodedata.normalize("NFC", str(int(label) if whole else label)).strip()  # type: ignore[call-overload]
        return text[: number.end(1)] if (number := _WHOLE.fullmatch(text)) else text
    return ""


_WHOLE = re.compile(r"([+-]?\d+)\.0*")


def code_of(names: Iterable[str]) -> Callable[[object], int]:
    """A function of one label: its place in the public ``names``, -1 if it is none of them.

    Case does not matter if no two names differ by it alone.
    """
    codes = {written(name): code for code, name in enumerate(names)}
    alone = Counter(name.casefold() for name in codes)
    folded = {n.casefold(): code for n, code in codes.items() if alone[n.casefold()] == 1}

    def code(label: object) -> int:
        text = written(label)
        return codes.get(text, folded.get(text.casefold(), -1))

    return code


def class_names(test: Iterable[object], public: Iterable[object]) -> list[str]:
    """The classes that PUBLIC labels name, in order: those of ``test`` rows and of ``public`` ones.

    The public rows' classes count if there are no test rows, or if they share one of their classes.
    """
    names = {text for label in test if (text := written(label))}
    code, none = code_of(sorted(names)), NO_LABEL if names else MISSING
    more = {text for label in public if (text := written(label)).lower() not in none}
    if not names or any(code(text) >= 0 for text in more):
        names |= {text for text in more if code(text) < 0}
    return sorted(names, key=_order)


def _order(name: str) -> tuple[bool, float, str]:
    """Numbers by value, before other texts."""
    number = re.fullmatch(r"[+-]?\d+([.]\d+)?", name)
    return number is None, float(name) if number else 0.0, name
