"""The statistical audit of a guarantee for persons: worst pairs of rows, with persons for records.

Every record of a pair becomes a person: its own row, rows of its label and of another one at the
same place with later ids, and a row of another label far off. Faithful code answers as it does for
the pair of rows, whose laws are known. A second ballot, an unclipped sum or a second payment moves
the answers by more.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ..mechanisms.base import Mechanism

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..mechanisms.voters import Voters
    from ..noise.entropy import Entropy
    from ..search.cpu import ExactIndex

FAR = 63  # entries of a row far off, on the other side than the query's
LATER = 1 << 40  # between the ids of a person's rows
M = TypeVar("M", bound=Mechanism)


def for_persons(mechanism: M) -> M:
    """The same mechanism, whose audit is of persons."""
    rows: type[Mechanism] = type(mechanism)

    def draw(
        self: Mechanism, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy
    ) -> np.ndarray:
        asked = peopled(voters, alike=self.query_form.matrix is not None)
        return rows.draw(self, stage, asked, keys, entropy)

    overridden = {"draw": draw, "audited_unit": "person", "__module__": rows.__module__}
    made = type(rows.__name__, (rows,), overridden)
    found: M = made(**vars(mechanism))
    return found


def peopled(voters: Voters, *, alike: bool = False) -> Voters:
    """Every record of an audit's pair as a person.

    ``alike``: persons of equal rows alone, for sums, to which persons of other rows add less.
    """
    from ..search.cpu import ExactIndex

    said = voters.labels
    other = said if alike or not len(said) else said.max() + said.min() - said
    query = voters.queries.reshape(-1, voters.queries.shape[-1])[0]
    far = () if alike else tuple(np.where(query > 0, -FAR, FAR).tolist())
    assert isinstance(voters.index, ExactIndex)
    index = _persons(voters.index, far)
    return replace(voters, index=index, labels=np.concatenate([said, said, other, other]))


@lru_cache(maxsize=8)
def _persons(index: ExactIndex, far: tuple[int, ...]) -> ExactIndex:
    """Four rows for each: three at its own place, and one ``far`` off, if that is anywhere."""
    own = index.features
    away = np.full_like(own, far) if far else own
    ids = np.concatenate([index.ids + copy * LATER for copy in range(4)])
    people = np.tile(np.arange(len(own)), 4)
    return type(index)(np.concatenate([own, own, own, away]), ids, people)
