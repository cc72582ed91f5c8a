"""The statistical audit of individual budgets refutes planted faults, not the real mechanism.

| planted fault                               | caught by                                          |
|---------------------------------------------|----------------------------------------------------|
| half the noise on counts                    | counts                                             |
| half the noise on labels                    | single answers among 20 classes                    |
| no noise for an empty neighbourhood         | counts                                             |
| no payments                                 | conversations                                      |
| a batch is charged after all of it is drawn | conversations: a budget for one query votes on all |
| noise not scaled by the root of the count   | conversations in a crowd, where labels are cheap   |
| a budget refilled when a record is re-added | a teacher whose records leave and come back        |

These tests depend on chance. Silence: a false alarm needs a bound to be wrong; 5 audits at
confidence 1 - 2.5e-8 each are jointly right with probability 1 - 2e-7 (union bound). Power:
simulated from the faults' laws at these settings (40 to 100 times each), the mean bound lies at
least 4.5 of its standard deviations above the claim, so that an attempt misses less than once in
10^5 (the smallest of all simulated bounds lay above its claim); each test takes the better of two
attempts: 7 * 1e-10.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.audits.harness import (
    PROBE_DELTA,
    EmpiricalFinding,
    Pair,
    bound_pair,
)
from labelwall.teacher.audits.ind_knn import (
    ALONE,
    ANSWERED,
    COUNT,
    CROWDED,
    audit_individual,
    claimed,
    probes_individual,
)
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.ind_knn import (
    ANSWER,
    LABEL_NOISE,
    MIN_NEIGHBOURS,
    IndKnn,
)
from labelwall.teacher.noise.entropy import Entropy, SystemEntropy
from labelwall.teacher.records.sources import Records
from labelwall.teacher.search.kernels import Similar
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import ExtractorSpec, Queries

pytestmark = pytest.mark.fresh_noise
SURE = 1 - 2.5e-8
WIDE = 0.1  # a delta at which faults of labels and payments show in fewer trials


class _Scaled(SystemEntropy):
    """Noise of one kind at another scale than asked for."""

    def __init__(self, entropy: Entropy, kind: str, scale: Callable[[float], float]) -> None:
        self._entropy, self._kind, self._scale = entropy, kind, scale

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        drawn = self._scale(sigma) if release == self._kind else sigma
        return self._entropy.discrete_gaussian(drawn, keys, release, width)


class HalfOnCounts(IndKnn):
    def answer(
        self,
        similar: Any,
        left: Any,
        labels: Any,
        c: int,
        keys: Any,
        entropy: Any,
        reused: Any = None,
    ) -> Any:
        return super().answer(
            similar, left, labels, c, keys, _Scaled(entropy, "count", lambda sigma: sigma / 2)
        )


class HalfOnLabels(IndKnn):
    def answer(
        self,
        similar: Any,
        left: Any,
        labels: Any,
        c: int,
        keys: Any,
        entropy: Any,
        reused: Any = None,
    ) -> Any:
        return super().answer(
            similar, left, labels, c, keys, _Scaled(entropy, LABEL_NOISE, lambda sigma: sigma / 2)
        )


class NotScaled(IndKnn):
    def answer(
        self,
        similar: Any,
        left: Any,
        labels: Any,
        c: int,
        keys: Any,
        entropy: Any,
        reused: Any = None,
    ) -> Any:
        least = float(self._noise(MIN_NEIGHBOURS))
        return super().answer(
            similar, left, labels, c, keys, _Scaled(entropy, LABEL_NOISE, lambda _: least)
        )


class SilentWhenEmpty(IndKnn):
    def answer(
        self,
        similar: Any,
        left: Any,
        labels: Any,
        c: int,
        keys: Any,
        entropy: Any,
        reused: Any = None,
    ) -> Any:
        values, paid = super().answer(similar, left, labels, c, keys, entropy)
        values[[len(found.rows) == 0 for found in similar]] = 0
        return values, paid


class NobodyPays(IndKnn):
    def answer(
        self,
        similar: Any,
        left: Any,
        labels: Any,
        c: int,
        keys: Any,
        entropy: Any,
        reused: Any = None,
    ) -> Any:
        pieces = [
            super(NobodyPays, self).answer([s], left, labels, c, [k], entropy)
            for s, k in zip(similar, keys, strict=True)
        ]
        return np.concatenate([values for values, _ in pieces]), np.zeros_like(left)


class ChargesAfterTheBatch(NobodyPays):
    def answer(
        self,
        similar: Sequence[Similar],
        left: Any,
        labels: Any,
        c: int,
        keys: Any,
        entropy: Any,
        reused: Any = None,
    ) -> Any:
        values, _ = super().answer(similar, left, labels, c, keys, entropy)
        return values, self.reserve(similar, left)


class RefillsWhenAdded(Teacher):
    """A record that comes again starts anew."""

    def add(self, records: Records) -> None:
        super().add(records)
        budgets = self._ledger.individual_budgets
        budgets.spent[0][budgets.serials(records.ids)] = 0


COUNTS, LABELS, DENSE = (probe for probe, _ in probes_individual(IndKnn(threshold=0.9)))


def audit(
    kind: type[IndKnn], setting: IndKnn, part: str, delta: float, trials: int
) -> EmpiricalFinding:
    return audit_individual(
        kind(**setting.fields()), delta=delta, trials=trials, confidence=SURE, releases=(part,)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "part", "trials"),
    [
        (COUNTS, COUNT, 1500),
        (COUNTS, ALONE, 4800),
        (LABELS, ANSWERED, 1500),
        (DENSE, CROWDED, 1200),
    ],
)
def test_the_real_mechanism_raises_no_alarm(setting: IndKnn, part: str, trials: int) -> None:
    found = audit(IndKnn, setting, part, PROBE_DELTA, trials)
    assert not found.refuted, found.render()
    assert [release.release for release in found.releases] == [part]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "setting", "part", "delta", "trials"),
    [
        (HalfOnCounts, COUNTS, COUNT, PROBE_DELTA, 8000),
        (HalfOnLabels, LABELS, ANSWERED, WIDE, 14000),
        (SilentWhenEmpty, COUNTS, COUNT, PROBE_DELTA, 2000),
        (NobodyPays, COUNTS, ALONE, WIDE, 1000 * 16),
        (ChargesAfterTheBatch, COUNTS, ALONE, WIDE, 1600 * 16),
        (NotScaled, DENSE, CROWDED, PROBE_DELTA, 2000 * 4),
    ],
)
def test_a_planted_fault_is_caught(
    fault: type[IndKnn], setting: IndKnn, part: str, delta: float, trials: int
) -> None:
    found = [audit(fault, setting, part, delta, trials)]
    if not found[0].refuted:
        found.append(audit(fault, setting, part, delta, trials))
    assert found[-1].refuted, [one.render() for one in found]


ROUNDS = 12  # of asking, leaving and coming back
CODE = 64  # dimensions of a trial's place, which is far from all others (below)


def teacher_bound(make: type[Teacher], folder: Path, trials: int) -> tuple[float, float]:
    """(lower bound, claim) for a teacher's records that leave and come back between rounds.

    Each trial has its own place, with or without a record: no query selects a record of another
    place.
    """
    places = np.random.default_rng(0).choice(np.array([-1, 1], dtype=np.float32), (trials, CODE))
    assert (np.sort(places @ places.T, axis=1)[:, -2] < 0.9 * CODE).all()
    plan = Plan(1e9, 1e-5, (Slot(COUNTS.fields(), COUNTS.releases(1, 1)),))

    def outcomes(_: Pair, added: bool, n: int) -> np.ndarray:
        directory = folder / f"{make.__name__} {added}"
        directory.mkdir(parents=True)
        held = Records(places, np.ones(trials, np.int64), np.arange(trials))
        here = held if added else Records(places[:0], held.labels[:0], held.ids[:0])
        ledger = Ledger.create(directory / "ledger.sqlite", dataset="d", plan=plan, unsafe=False)
        teacher = make(lambda: here, ledger, directory, 2, SystemEntropy())
        teacher.use_extractor(ExtractorSpec("raw", (CODE,), 2))
        counts = np.empty((trials, ROUNDS), dtype=np.int64)
        for number in range(ROUNDS):
            # another identity, the same direction
            asked = Queries(places * np.float32(1 + number / 16))
            teacher.answer(asked)
            keys = asked.identities(ledger.state.extractor, COUNTS.fields())
            counts[:, number] = [ledger.state.results[key][ANSWER][0] for key in keys]
            teacher.remove(held.ids)
            if added:
                teacher.add(held)
        return np.clip(counts + 8, 0, 16).reshape(-1)

    bound = bound_pair(
        outcomes, Pair(0, 0, 2), queries=ROUNDS, trials=trials, delta=WIDE, error=1 - SURE
    )
    return bound, claimed(COUNTS, ROUNDS, WIDE, label=True)


@pytest.mark.slow
def test_a_budget_that_fills_up_again_is_caught_through_the_teacher(tmp_path: Path) -> None:
    bound, claim = teacher_bound(Teacher, tmp_path, 300)
    assert bound <= claim
    found = [teacher_bound(RefillsWhenAdded, tmp_path / "first", 1000)]
    if found[0][0] <= claim:
        found.append(teacher_bound(RefillsWhenAdded, tmp_path / "again", 1000))
    assert max(bound for bound, _ in found) > claim, found


@pytest.mark.parametrize("wrong", [{"trials": 7}, {"delta": 0.0}, {"confidence": 1.0}])
def test_bad_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        audit_individual(COUNTS, **{"delta": 0.02, "trials": 400, **wrong})


def test_what_faithful_code_reaches_is_less_than_what_it_claims() -> None:
    for setting, parts in probes_individual(IndKnn(threshold=0.5)):
        for release in audit_individual(
            setting, delta=PROBE_DELTA, trials=160, releases=parts
        ).releases:
            assert release.lower_bound >= 0
            assert release.expected < release.claim
