"""The statistical audit of neighbours' values: their own draws on pairs of neighbouring data sets, all records at two values.

The added record is the nearest and has the largest value; its allies, next, have the same, the rivals behind them the smallest.
So the pairs are those of votes for two classes (worst_case.py): the largest number in a window is the plurality, the sum is moved
as far as it can be, and below and above a cell stand the rivals and the allies. Beside the sharpest of them each release is run
without any others, where all that comes out is noise. Validity and the rest: teacher/mechanisms/vote_audit.py.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.mechanisms.private_knn.mechanism import PrivateKnn
from labelwall.teacher.mechanisms.reverse_knn.audit import OUTCOMES, code
from labelwall.teacher.mechanisms.values.mechanism import (
    RANGE,
    SCREEN,
    PrivateKnnMean,
    PrivateKnnMedian,
)
from labelwall.teacher.mechanisms.vote_audit import (
    EXPLORED,
    EmpiricalFinding,
    ReleaseFinding,
    bound_pair,
    check_audit,
    expected_bound,
)
from labelwall.teacher.mechanisms.vote_laws import Pair, candidates, laws, votes
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import Entropy, SystemEntropy
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.labels.values import STEPS

Values = PrivateKnnMean | PrivateKnnMedian
ALONE = Pair(0, 0, 2)
MOST_RECORDS = 8192  # larger crowds take too long to draw from
_TOGETHER = 1024


def probe_values(mechanism: Values) -> Values:
    """The same code with parameters at which faults show in seconds."""
    few = {
        "k": 3,
        "sampling_probability": 0.5,
        "threshold": 2,
        "sigma_screen": 1.0,
        "cells": 4,
        "window": 1,
    }
    if isinstance(mechanism, PrivateKnnMean):
        return replace(mechanism, **few, sigma_mean=1.5)  # type: ignore[arg-type]
    return replace(mechanism, **few, epsilon=1.5)  # type: ignore[arg-type]


def audit_values(
    mechanism: Values, *, delta: float, trials: int, confidence: float = 0.95
) -> EmpiricalFinding:
    """Audit each release of a query. ``trials``: queries drawn for each on each of the two data sets of a pair.

    Raises InvalidInput for fewer than 8 trials, or delta or confidence outside (0, 1).
    """
    check_audit(delta, trials, confidence, 1)
    error, found = (1 - confidence) / (2 * len(mechanism.stages)), []
    for stage in mechanism.stages:
        pair, expected = _sharpest(mechanism, stage, trials - trials // EXPLORED, delta, error)

        def outcomes(at: Pair, added: bool, n: int, stage: str = stage) -> np.ndarray:
            return run_values(mechanism, stage, at, added, n, SystemEntropy())

        bounds = {
            at: bound_pair(outcomes, at, queries=1, trials=trials, delta=delta, error=error)
            for at in sorted({pair, ALONE}, key=repr)
        }
        at = max(bounds, key=bounds.__getitem__)
        alone = replace(mechanism, threshold=None)
        releases = mechanism.releases(1, 0) if stage == SCREEN else alone.releases(1, 1)
        claim = certified_epsilon(Plan(1.0, delta, (Slot(mechanism.fields(), releases),)))
        found.append(ReleaseFinding(stage, 1, trials, at, bounds[at], expected, claim))
    return EmpiricalFinding(mechanism.fields(), delta, confidence, tuple(found))


def run_values(
    mechanism: Values, stage: str, pair: Pair, added: bool, n: int, entropy: Entropy
) -> np.ndarray:
    """Codes of ``n`` independent draws of one release through the mechanism's own code: int64 [n].

    A bit; a noisy sum in parts of its deviation; a label.
    """
    labels = pair.labels(added) * STEPS
    ids = np.arange(len(labels)) + (not added)  # the added record is id 0
    index, call, codes = (
        ExactIndex((ids > 0).astype(np.int8)[:, None], ids),
        secrets.token_hex(8),
        [],
    )
    for start in range(0, n, _TOGETHER):
        keys = [f"{call}-{row}" for row in range(start, min(start + _TOGETHER, n))]
        voters = Voters(index, labels, 1, np.zeros((len(keys), 1), dtype=np.int8))
        drawn = mechanism.draw(stage, voters, keys, entropy)
        codes.append(
            _code(mechanism, drawn, pair)
            if stage != SCREEN and isinstance(mechanism, PrivateKnnMean)
            else drawn
        )
    return np.concatenate(codes)


def _code(mechanism: PrivateKnnMean, sums: np.ndarray, pair: Pair) -> np.ndarray:
    return code(sums - _middle(mechanism, pair), mechanism.sigma_mean * RANGE)


def _middle(mechanism: PrivateKnnMean, pair: Pair) -> int:
    """The sum that is expected without the record, int."""
    n_a, n_0, mass = votes(_poll(mechanism), pair, False)
    return round(float(mass @ (n_a - n_0)) * STEPS)


def _poll(mechanism: Values) -> PrivateKnn:
    """The votes of the same neighbours for two classes, and their screening."""
    m, threshold = mechanism, mechanism.threshold or 0
    return PrivateKnn(
        k=m.k,
        threshold=threshold,
        sigma_screen=m.sigma_screen,
        sampling_probability=m.sampling_probability,
    )


def _sharpest(
    mechanism: Values, stage: str, tested: int, delta: float, error: float
) -> tuple[Pair, float]:
    """The pair with the largest expected bound, and that bound, from the laws; ALONE where none shows anything."""
    best = ALONE, 0.0
    for pair in candidates(_poll(mechanism)):
        if pair.num_classes == 2 and pair.allies + pair.rivals <= MOST_RECORDS:
            expected = expected_bound(*_laws(mechanism, stage, pair), tested, delta, error)
            best = max(best, (pair, expected), key=lambda found: found[1])
    return best


@lru_cache(maxsize=4096)
def _laws(mechanism: Values, stage: str, pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of what a release says without and with the record, float64 [n_outcomes] each."""
    if stage == SCREEN:
        return laws(_poll(mechanism), pair)[SCREEN]
    gamma = mechanism.sampling_probability
    still, away = (_law(mechanism, pair, sampled) for sampled in (False, True))
    return still, (1 - gamma) * still + gamma * away


def _law(mechanism: Values, pair: Pair, sampled: bool) -> np.ndarray:
    """When the added record is, or is not, in the sample. Of a mean by the normal law: its steps are fine."""
    n_a, n_0, mass = votes(_poll(mechanism), pair, sampled)
    if isinstance(mechanism, PrivateKnnMean):
        shifts = ((n_a - n_0) * STEPS - _middle(mechanism, pair)) / (
            mechanism.sigma_mean * RANGE
        )  # in deviations
        edges = 8 * (np.arange(1, OUTCOMES + 1) - OUTCOMES // 2) / OUTCOMES
        below = np.pad(
            ndtr(edges - shifts[:, None]), ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1))
        )
        return mass @ np.diff(below, axis=1)
    inner = np.repeat(np.maximum(n_a, n_0)[:, None], mechanism.cells - 2, axis=1)
    losses = np.column_stack([n_a, inner, n_0])  # the lowest cell has the allies above it
    weights = np.exp(-mechanism.epsilon / 2 * (losses - losses.min(axis=1, keepdims=True)))
    return mass @ (weights / weights.sum(axis=1, keepdims=True))
