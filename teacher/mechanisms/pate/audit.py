"""PATE as the statistical audit sees it (teacher/mechanisms/vote_audit.py).

Its votes are those of a full sample without sampling. There are k shards: each ally's shard has one
record of class a, the others are empty and vote for class 0. The added record lies in one of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ...classifiers.linear_ensemble import (
    Ensemble,
    shard_numbers,
    train_ensemble,
)
from ...statistical_audit import Pair
from ..vote_laws import CLASSES, Poll
from ..voters import Voters
from .mechanism import ConfidentGnmax, Gnmax, Lnmax

_GRID = 60  # steps of the number of allies from 0 to k - 1; the rivals are the others


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


def poll_lnmax(mechanism: Lnmax) -> Poll:
    """All shards, with Laplace noise."""
    return ShardPoll(k=mechanism.teachers, sigma_vote=mechanism.number("scale"), laplace=True)


def poll_gnmax(mechanism: Gnmax) -> Poll:
    """All shards, with Gaussian noise."""
    return ShardPoll(k=mechanism.teachers, sigma_vote=mechanism.number("sigma_vote"))


def poll_confident_gnmax(mechanism: ConfidentGnmax) -> Poll:
    """All shards, with Gaussian noise, screened."""
    return ShardPoll(
        k=mechanism.teachers,
        sigma_vote=mechanism.number("sigma_vote"),
        threshold=mechanism.threshold,
        sigma_screen=mechanism.number("sigma_screen"),
    )


def probe_lnmax(mechanism: Lnmax) -> Lnmax:
    """The same code with parameters at which faults show in seconds."""
    return replace(mechanism, teachers=2, scale=2.0)


def probe_gnmax(mechanism: Gnmax) -> Gnmax:
    """The same code with parameters at which faults show in seconds."""
    return replace(mechanism, teachers=2, sigma_vote=2.0)


def probe_confident_gnmax(mechanism: ConfidentGnmax) -> ConfidentGnmax:
    """The same code with parameters at which faults show in seconds."""
    return replace(mechanism, teachers=2, threshold=1, sigma_screen=1.0, sigma_vote=2.0)
