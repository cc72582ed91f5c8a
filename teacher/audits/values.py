"""The statistical audit of neighbours' values on pairs of neighbouring data sets.

All records have one of two values. The added record is the nearest and has the largest value; its
allies, next, have the same, the rivals behind them the smallest. So the pairs are those of votes
for two classes (vote_laws.py): the largest number in a window is the plurality, the sum moves by
its full sensitivity, and the rivals lie below a cell and the allies above it. Besides the pair with
the largest expected bound, each release is run without other records, where it is only noise.
Validity: harness.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from ...wall.labels.values import STEPS
from ..mechanisms.values import (
    RANGE,
    SCREEN,
    PrivateKnnMean,
    PrivateKnnMedian,
    Regression,
)
from ..mechanisms.voters import Voters
from ..noise.entropy import Entropy, SystemEntropy
from ..search.cpu import ExactIndex
from .harness import (
    EmpiricalFinding,
    Pair,
    ReleaseFinding,
    certified,
    check_audit,
    expected_bound,
    fresh_keys,
    normal_law,
    sharpest_bound,
    sum_codes,
)
from .vote_laws import Poll, laws, votes

R = TypeVar("R", bound=Regression)
EMPTY = Pair(0, 0, 2)
MAX_RECORDS = 8192  # drawing from more takes too long
_QUERIES_PER_CALL = 1024


@dataclass(frozen=True)
class AuditedValues(ABC):
    """The audit's statistic of a mechanism's answer, and its law."""

    mechanism: Regression

    @abstractmethod
    def probe(self) -> Regression:
        """The same code with parameters at which faults show in seconds."""

    @abstractmethod
    def codes(self, drawn: np.ndarray, pair: Pair) -> np.ndarray:
        """Codes of released values (int64 [n]) on a side of a pair: int64 [n]."""

    @abstractmethod
    def law(self, pair: Pair, sampled: bool) -> np.ndarray:
        """Probabilities of the codes, float64 [n_codes].

        ``sampled``: whether the added record is in the sample.
        """

    @property
    def poll(self) -> Poll:
        """The votes of the same neighbours for two classes, and their screening."""
        m = self.mechanism
        return Poll(
            k=m.k,
            threshold=m.threshold or 0,
            sigma_screen=m.require("sigma_screen"),
            sampling_probability=m.sampling_probability,
        )


@dataclass(frozen=True)
class AuditedMean(AuditedValues):
    """A noisy sum, rounded to parts of its standard deviation."""

    mechanism: PrivateKnnMean

    def probe(self) -> Regression:
        """See ``AuditedValues.probe``."""
        return replace(_probe(self.mechanism), sigma_mean=1.5)

    def codes(self, drawn: np.ndarray, pair: Pair) -> np.ndarray:
        """See ``AuditedValues.codes``."""
        return sum_codes(drawn - self._middle(pair), self.mechanism.require("sigma_mean") * RANGE)

    def law(self, pair: Pair, sampled: bool) -> np.ndarray:
        """By the normal law, as the sum's steps are fine enough."""
        n_a, n_0, mass = votes(self.poll, pair, sampled)
        moved = (n_a - n_0) * STEPS - self._middle(pair)
        return mass @ normal_law(moved / (self.mechanism.require("sigma_mean") * RANGE))

    def _middle(self, pair: Pair) -> int:
        """The expected sum without the record."""
        n_a, n_0, mass = votes(self.poll, pair, False)
        return round(float(mass @ (n_a - n_0)) * STEPS)


@dataclass(frozen=True)
class AuditedMedian(AuditedValues):
    """The label of the drawn cell."""

    mechanism: PrivateKnnMedian

    def probe(self) -> Regression:
        """See ``AuditedValues.probe``."""
        return replace(_probe(self.mechanism), epsilon=1.5)

    def codes(self, drawn: np.ndarray, pair: Pair) -> np.ndarray:
        """The labels."""
        return drawn

    def law(self, pair: Pair, sampled: bool) -> np.ndarray:
        """Probabilities of the cells by the exponential mechanism."""
        n_a, n_0, mass = votes(self.poll, pair, sampled)
        inner = np.repeat(np.maximum(n_a, n_0)[:, None], self.mechanism.cells - 2, axis=1)
        losses = np.column_stack([n_a, inner, n_0])  # the lowest cell has the allies above it
        excess = losses - losses.min(axis=1, keepdims=True)
        weights = np.exp(-self.mechanism.require("epsilon") / 2 * excess)
        return mass @ (weights / weights.sum(axis=1, keepdims=True))


def _probe(mechanism: R) -> R:
    probe = replace(mechanism, k=3, sampling_probability=0.5, threshold=2, cells=4, window=1)
    return replace(probe, sigma_screen=1.0)


def audited(mechanism: Regression) -> AuditedValues:
    """The release of the answer as the audit sees it."""
    if isinstance(mechanism, PrivateKnnMean):
        return AuditedMean(mechanism)
    assert isinstance(mechanism, PrivateKnnMedian)
    return AuditedMedian(mechanism)


def audit_values(
    mechanism: Regression,
    *,
    delta: float,
    trials: int,
    confidence: float = 0.95,
    releases: Sequence[str] = (),
) -> EmpiricalFinding:
    """Audit each release of a query, or those of ``releases``.

    ``trials``: queries drawn for each on each of the two data sets of a pair. Raises InvalidInput
    for fewer than 8 trials, or delta or confidence outside (0, 1).
    """
    check_audit(delta, trials, confidence, 1)
    stages = releases or mechanism.stages
    error, found = (1 - confidence) / (2 * len(stages)), []
    attacked = audited(mechanism)
    for stage in stages:
        pair, expected = _sharpest(attacked, stage, trials, delta, error)

        def outcomes(at: Pair, added: bool, n: int, stage: str = stage) -> np.ndarray:
            return run_values(attacked, stage, at, added, n, SystemEntropy())

        at, bound = sharpest_bound(
            outcomes, (pair, EMPTY), queries=1, trials=trials, delta=delta, error=error
        )
        unscreened = replace(mechanism, threshold=None)
        priced = mechanism.releases(1, 0) if stage == SCREEN else unscreened.releases(1, 1)
        claim = certified(mechanism, priced, delta)
        found.append(ReleaseFinding(stage, 1, trials, at, bound, expected, claim))
    return EmpiricalFinding(mechanism.fields(), delta, confidence, tuple(found))


def run_values(
    audited: AuditedValues, stage: str, pair: Pair, added: bool, n: int, entropy: Entropy
) -> np.ndarray:
    """Codes of ``n`` independent draws of one release by the mechanism's own code: int64 [n]."""
    labels = pair.labels(added) * STEPS
    ids = np.arange(len(labels)) + (not added)  # the added record is id 0
    index = ExactIndex((ids > 0).astype(np.int8)[:, None], ids)
    codes = []
    for keys in fresh_keys(n, _QUERIES_PER_CALL):
        voters = Voters(index, labels, 1, np.zeros((len(keys), 1), dtype=np.int8))
        drawn = audited.mechanism.draw(stage, voters, keys, entropy)
        codes.append(drawn if stage == SCREEN else audited.codes(drawn, pair))
    return np.concatenate(codes)


def _sharpest(
    audited: AuditedValues, stage: str, trials: int, delta: float, error: float
) -> tuple[Pair, float]:
    """The pair with the largest expected bound, and that bound; EMPTY if all bounds are zero."""
    best = EMPTY, 0.0
    for pair in audited.poll.candidates():
        if pair.num_classes == 2 and pair.allies + pair.rivals <= MAX_RECORDS:
            expected = expected_bound(*_laws(audited, stage, pair), trials, delta, error)
            best = max(best, (pair, expected), key=lambda found: found[1])
    return best


@lru_cache(maxsize=4096)
def _laws(audited: AuditedValues, stage: str, pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of a release's codes without and with the record, float64 [n_codes] each."""
    if stage == SCREEN:
        return laws(audited.poll, pair)[SCREEN]
    gamma = audited.mechanism.sampling_probability
    absent, present = (audited.law(pair, sampled) for sampled in (False, True))
    return absent, (1 - gamma) * absent + gamma * present
