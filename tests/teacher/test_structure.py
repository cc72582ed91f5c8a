"""Checks of structure, for faults whose answers follow the right law: each passes on the real code
and fails on its fault. Fresh draws coincide with probability below 2^-100 a comparison."""

import os
import random
import secrets
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.votes import AGGREGATE, SCREEN, PrivateKnn
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.teacher import Teacher
from labelwall.wall.messages import ExtractorSpec
from tests.ledgers import Watching
from tests.make import LEDGER, alike, build
from tests.programs.kill_runner import forked
from tests.seeded_noise import SeededNoise

pytestmark = pytest.mark.fresh_noise
MECHANISM = PrivateKnn(k=3, threshold=1, sigma_screen=1.0, sigma_vote=1.0, sample_rate=0.5)
ROWS = np.array([[1.0, 0.1 * i] for i in range(8)] + [[-1.0, 0.0]], dtype=np.float32)
LABELS = np.arange(9) % 2


class SeededEntropy(SeededNoise):
    """Repeatable draws that pass for the system's."""

    unsafe = False

    def __init__(self) -> None:
        super().__init__(seed=0)


class GlobalEntropy(SystemEntropy):
    """Noise from numpy's global generator, which anybody may have seeded."""

    generator = np.random

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        return np.rint(self.generator.normal(0, sigma, (len(keys), width))).astype(np.int64)


class ForkedEntropy(GlobalEntropy):
    """A generator seeded by the system, once: processes forked afterwards draw alike."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng()


class CentredByPrivateMean(Teacher):
    """Centres features by the mean of the private rows."""

    def use_extractor(self, spec: ExtractorSpec) -> None:
        mean = self.records().inputs.mean(axis=0, dtype=np.float64)
        super().use_extractor(replace(spec, center=tuple(mean.tolist())))


class ChecksAfterRelease(Teacher):
    """Draws for everyone who is due, then asks the ledger who may have the result."""

    def _settle(
        self, slot: int, keys: list[str], queries: np.ndarray, inputs: np.ndarray | None = None
    ) -> None:
        mechanism, batch = self._mechanisms[slot], keys
        voters = replace(self._prepared, queries=queries, inputs=inputs)
        for stage in mechanism.stages:
            results = self._ledger.state.results
            due = [i for i in batch if mechanism.next_stage(results.get(i, {})) == stage]
            drawn = mechanism.draw(
                stage, voters.select([batch.index(i) for i in due]), due, self._entropy
            )
            charge = self._ledger.charge(slot, stage, due)
            if charge.granted:
                results = dict(zip(due, drawn.tolist(), strict=True))
                self._ledger.record(charge, {i: results[i] for i in charge.granted})


def charged_first(make, directory):
    """Whether a teacher pays before each draw and never draws past caps: of 40, 30 and 5."""
    watching = Watching(directory / "t" / LEDGER)
    teacher = build(
        make, directory / "t", ROWS, LABELS, MECHANISM, asked=30, answered=5, entropy=watching
    )
    answers = teacher.answer(alike(40))
    assert (answers.labels >= 0).sum() <= 5
    assert watching.drawn[SCREEN] >= 30
    return watching.unpaid == 0 and watching.drawn[SCREEN] <= 30 and watching.drawn[AGGREGATE] <= 5


@pytest.mark.parametrize("make", [Teacher, ChecksAfterRelease])
def test_charged_first(tmp_path, make):
    assert charged_first(make, tmp_path) == (make is Teacher)


def fresh(draw):
    """Whether four calls differ: two after the same global seeds, and two in forked processes."""
    drawn = []
    for _ in range(2):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        drawn.append(draw().tobytes())
    drawn += [_forked(draw) for _ in range(2)]
    return len(set(drawn)) == len(drawn)


def _forked(draw):
    read, write = os.pipe()
    assert forked(lambda: os.write(write, draw().tobytes()) and None) == 0
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        return pipe.read()


KEYS = [secrets.token_hex(8) for _ in range(128)]


def _noise(entropy):
    return entropy.discrete_gaussian(5.0, KEYS, SCREEN, 1)


def _bits(entropy):
    return entropy.inclusion(0.5, KEYS[:8], SCREEN, np.tile(np.arange(32), (8, 1)))


@pytest.mark.parametrize("draw", [_noise, _bits])
def test_the_systems_entropy_is_fresh(draw):
    lasting = SystemEntropy()
    assert fresh(lambda: draw(SystemEntropy()))
    assert fresh(lambda: draw(lasting))


@pytest.mark.parametrize(
    ("entropy", "lasting", "draw"),
    [
        (SeededEntropy, False, _noise),
        (SeededEntropy, False, _bits),
        (GlobalEntropy, False, _noise),
        (ForkedEntropy, True, _noise),
    ],
)
def test_a_seeded_source_is_seen(entropy, lasting, draw):
    shared = entropy()
    assert not fresh(lambda: draw(shared if lasting else entropy()))


def test_no_two_queries_or_releases_share_bits_or_noise():
    """A sample drawn once for a batch, or once for both releases, would repeat rows here."""
    entropy, ids = SystemEntropy(), np.tile(np.arange(256), (40, 1))
    rows = np.concatenate(
        [entropy.inclusion(0.5, KEYS[:40], release, ids) for release in (SCREEN, AGGREGATE)]
    )
    assert len(np.unique(rows, axis=0)) == 80
    wide = np.concatenate(
        [entropy.discrete_gaussian(25.0, KEYS[:40], release, 64) for release in (SCREEN, AGGREGATE)]
    )
    assert len(np.unique(wide, axis=0)) == 80


def row_by_row(make, directory, extra):
    """Whether an added record leaves the ledger's entries and all others' features as they were."""
    teachers = []
    for name, x, y in (
        ("without", ROWS, LABELS),
        ("with", np.concatenate([extra, ROWS]), np.append(0, LABELS)),
    ):
        build(make, directory / name, x, y, MECHANISM, asked=5, answered=5)
        (cache,) = (directory / name).glob("embeddings-*.npz")
        stored = np.load(cache, allow_pickle=False)
        features = dict(zip(stored["ids"].tolist(), stored["features"].tolist(), strict=True))
        teachers.append((features, Ledger(directory / name / LEDGER).state.head))
    (without, head), (added, other_head) = teachers
    assert len(added) == len(without) + 1
    return head == other_head and all(added[record] == row for record, row in without.items())


EXTRAS = [[0.0, 1e6], [-1e-3, 0.0], [0.0, 0.0], [1.0, 0.3]]


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("make", [Teacher, CentredByPrivateMean])
def test_row_by_row(tmp_path, make, extra):
    assert row_by_row(make, tmp_path, np.array([extra], dtype=np.float32)) == (make is Teacher)
