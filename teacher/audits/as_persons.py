"""Persons in place of records, in the data sets of the statistical audit.

Every record of a pair becomes a person: its own row, rows of its label and of another one at the
same place with later ids, and a row of another label far off. Faithful code answers as it does for
the pair of rows. A second ballot, an unclipped sum or a second payment moves the answers by more.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...wall.unit import Unit
from ..mechanisms.voters import Voters
from ..search.cpu import ExactIndex

FAR = 63  # entries of a row far off, on the other side than the query's
LATER = 1 << 40  # between the ids of a person's rows


def of_unit(voters: Voters, unit: Unit, *, alike: bool = False) -> Voters:
    """A pair's side, whose records are rows, or persons with four rows each.

    ``alike``: persons of equal rows alone, for sums, to which persons of other rows add less.
    """
    if unit == "row":
        return voters
    labels, index = voters.labels, voters.index
    assert isinstance(index, ExactIndex)
    other = labels if alike or not len(labels) else labels.max() + labels.min() - labels
    query = voters.queries.reshape(-1, voters.queries.shape[-1])[0]
    own = index.features
    away = own if alike else np.full_like(own, np.where(query > 0, -FAR, FAR))
    ids = np.concatenate([index.ids + copy * LATER for copy in range(4)])
    people = ExactIndex(np.concatenate([own, own, own, away]), ids, np.tile(np.arange(len(own)), 4))
    return replace(voters, index=people, labels=np.concatenate([labels, labels, other, other]))
