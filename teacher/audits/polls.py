"""The votes of each mechanism as the statistical audit sees them (votes.py).

PATE's votes are those of a full sample without sampling. There are k shards: each ally's shard has
one record of class a, the others are empty and vote for class 0. The added record lies in one of
these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from ..classifiers.linear_ensemble import Ensemble, shard_numbers, train_ensemble
from ..mechanisms.voters import Voters
from ..mechanisms.votes import SampledVotes, Votes
from .harness import Pair
from .vote_laws import CLASSES, Poll

_GRID = 60  # steps of the number of allies from 0 to k - 1; the rivals are the others


@dataclass(frozen=True)
class BallPoll(Poll):
    """All records of a pair within the radius: the only landmark is as far off as they are."""

    def voters(self, pair: Pair, added: bool, queries: int) -> Voters:
        """See ``Poll.voters``."""
        return replace(super().voters(pair, added, queries), landmarks=b"\x01")


@dataclass(frozen=True)
class ShardPoll(Poll):
    """``k`` classifiers on disjoint shards, which all vote."""

    def empty(self, part: str) -> Pair:
        """No record but the added one: all shards vote for class 0."""
        return replace(super().empty(part), rivals=self.k)

    def candidates(self) -> Iterator[Pair]:
        """Pairs with the number of allies on a grid over 0..k - 1; all other shards are rivals."""
        allies = sorted({round((self.k - 1) * i / _GRID) for i in range(_GRID + 1)})
        yield from (Pair(n, self.k - n, classes) for classes, n in product(CLASSES, allies))

    def voters(self, pair: Pair, added: bool, queries: int) -> Voters:
        """Linear classifiers for all mechanisms, as the audit starts from the votes."""
        voters = super().voters(pair, added, queries)
        return _LinearVoters(
            voters.index,
            voters.labels,
            voters.num_classes,
            voters.queries,
            ensembles={self.k: ensemble(self.k, pair, added)},
        )


@dataclass(frozen=True)
class _LinearVoters(Voters):
    def teacher_votes(self, teachers: int, classifier: str) -> np.ndarray:
        return super().teacher_votes(teachers, "linear")


def ensemble(teachers: int, pair: Pair, added: bool) -> Ensemble:
    """Classifiers on shards with one record each (allies and the added record) or none."""
    key, first = bytes(32), dict[int, int]()  # shard -> an id that falls into it
    for start in range(0, 1000 * teachers, 1000):
        ids = np.arange(start, start + 1000)
        for shard, identity in zip(
            shard_numbers(ids, key, teachers).tolist(), ids.tolist(), strict=True
        ):
            first.setdefault(shard, identity)
        if len(first) > pair.allies:
            break
    records = np.array(list(first.values())[: pair.allies + added], dtype=np.int64)
    labels = np.full(len(records), pair.num_classes - 1)
    rows = np.zeros((len(records), 1), dtype=np.int8)
    return train_ensemble(
        rows, labels, records, num_classes=pair.num_classes, teachers=teachers, key=key
    )


def _screened(mechanism: SampledVotes, kind: type[Poll] = Poll) -> Poll:
    return kind(
        k=mechanism.max_votes,
        sigma_vote=mechanism.require("sigma_vote"),
        threshold=mechanism.threshold,
        sigma_screen=mechanism.require("sigma_screen"),
        sampling_probability=mechanism.sampling_probability,
        swap=mechanism.swap,
    )


POLLS: dict[str, Callable[[Any], Poll]] = {
    "private_knn": _screened,
    "private_radius": lambda m: _screened(m, BallPoll),
    "naive_knn": lambda m: Poll(k=m.k, sigma_vote=m.require("sigma_vote")),
    "lnmax": lambda m: ShardPoll(k=m.teachers, sigma_vote=m.require("scale"), laplace=True),
    "gnmax": lambda m: ShardPoll(k=m.teachers, sigma_vote=m.require("sigma_vote")),
    "confident_gnmax": lambda m: ShardPoll(
        k=m.teachers,
        sigma_vote=m.require("sigma_vote"),
        threshold=m.threshold,
        sigma_screen=m.require("sigma_screen"),
    ),
}


def poll(mechanism: Votes) -> Poll:
    """How the mechanism's votes are counted, and on which pairs."""
    return POLLS[mechanism.kind](mechanism)
