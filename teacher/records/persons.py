"""Persons by codes: whose a private row is, where the unit of privacy is a person.

Ids of persons never leave this file: rows have codes, which are private, too. Rows are told apart
by person *and* id. If an id alone did, a row of one person could hide a row of another with the
same id, and adding that person would take away more than is its own. Rows without ids are numbered
among their person's, so that no other person's rows decide a number.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ...wall.datasets.folders import stable_hash
from ...wall.errors import InvalidInput, shape_text
from ...wall.labels import readable, written

NOBODY = -1  # the code of a row without a person
MAX_LENGTH = 256  # of an id, characters


def code_of(text: str) -> int:
    """A person's code: 63 bits of a hash of the id, ``written`` as labels are: 7.0 is 7.

    NOBODY for an empty id, and for one of more than MAX_LENGTH characters.
    """
    text = written(text)
    return stable_hash(f"person {text}") if 0 < len(text) <= MAX_LENGTH else NOBODY


def codes_of(texts: Sequence[str] | np.ndarray) -> np.ndarray:
    """Codes of persons by their ids: int64 [n]."""
    codes = {text: code_of(text) for text in dict.fromkeys(texts)}
    return np.array([codes[text] for text in texts], dtype=np.int64)


def codes_in(name: str, values: np.ndarray, rows: int) -> np.ndarray:
    """Codes of an array of ids, whole numbers or texts: int64 [rows].

    Raises InvalidInput, which says neither an id nor how many rows there are.
    """
    if values.dtype.kind not in "iuU" or values.ndim != 1:
        raise InvalidInput(name, "whole numbers or texts [n]", shape_text(values))
    if len(values) != rows:
        raise InvalidInput(name, "one for each row", "another count")
    texts = readable(values) if values.dtype.kind == "U" else list(map(str, values.tolist()))
    return codes_of(texts)


def row_ids(persons: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Ids of rows within all persons' rows: int64 [n]; a function of person and id."""
    pairs = zip(persons.tolist(), ids.tolist(), strict=True)
    return np.array([stable_hash(f"{person} {row}") for person, row in pairs], dtype=np.int64)


def places(persons: np.ndarray, counts: Counter[int]) -> np.ndarray:
    """Numbers of rows among their person's rows, from 0: int64 [n].

    ``counts``: how many rows of each person came before, and afterwards with these.
    """
    numbers = np.empty(len(persons), dtype=np.int64)
    for row, person in enumerate(persons.tolist()):
        numbers[row] = counts[person]
        counts[person] += 1
    return numbers
