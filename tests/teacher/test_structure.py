"""Checks of structure, for faults whose answers follow the right law: each passes on the real code
and fails on its fault.

- Charged first: at every draw the ledger, read from its file, has already paid for it, and no cap
  is passed.
- Fresh: two equal calls draw differently, whatever global seeds say, across instances and forked
  processes.
- Row by row: before the first draw, nothing public depends on the private rows, and no record's
  features on another's.

Chance enters twice: fresh draws coincide with probability below 2^-100 a comparison, and a tape
under fresh keys screens 11 to 117 of 128 queries positively but once in 10^18.
"""

import os
import random
import secrets
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from labelwall.teacher.audits.cases import cases
from labelwall.teacher.audits.harness import Pair
from labelwall.teacher.audits.votes import JOINT
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.mechanisms.votes import AGGREGATE, SCREEN, PrivateKnn
from labelwall.teacher.noise.entropy import Entropy, SystemEntropy
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.teacher import Teacher
from tests.ledgers import Watching
from tests.make import LEDGER, Make, alike, build
from tests.programs.kill_runner import forked
from tests.teacher.audits import faulty_teachers as faults

pytestmark = pytest.mark.fresh_noise
MECHANISM = PrivateKnn(k=3, threshold=1, sigma_screen=1.0, sigma_vote=1.0, sample_rate=0.5)
ROWS = np.array([[1.0, 0.1 * i] for i in range(8)] + [[-1.0, 0.0]], dtype=np.float32)
LABELS = np.arange(9) % 2


def charged_first(make: Make, directory: Path) -> bool:
    """Whether a teacher pays before each draw and never draws past caps: of 40, 30 and 5."""
    watching = Watching(directory / "t" / LEDGER)
    teacher = build(
        make, directory / "t", ROWS, LABELS, MECHANISM, asked=30, answered=5, entropy=watching
    )
    answers = teacher.answer(alike(40))
    assert (answers.labels >= 0).sum() <= 5
    assert watching.drawn[SCREEN] >= 30
    return watching.unpaid == 0 and watching.drawn[SCREEN] <= 30 and watching.drawn[AGGREGATE] <= 5


def test_charged_first(tmp_path: Path) -> None:
    assert charged_first(Teacher, tmp_path)


def test_a_check_after_release_is_seen(tmp_path: Path) -> None:
    assert not charged_first(faults.ChecksAfterRelease, tmp_path)


def fresh(draw: Callable[[], np.ndarray]) -> bool:
    """Whether four calls differ pairwise: two after the same global seeds, two of them in forked
    processes.
    """
    drawn = []
    for _ in range(2):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        drawn.append(draw().tobytes())
    drawn += [_forked(draw) for _ in range(2)]
    return len(set(drawn)) == len(drawn)


def _forked(draw: Callable[[], np.ndarray]) -> bytes:
    read, write = os.pipe()
    assert forked(lambda: os.write(write, draw().tobytes()) and None) == 0
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        return pipe.read()


KEYS = [secrets.token_hex(8) for _ in range(128)]


def _noise(entropy: Entropy) -> np.ndarray:
    return entropy.discrete_gaussian(5.0, KEYS, SCREEN, 1)


def _bits(entropy: Entropy) -> np.ndarray:
    return entropy.inclusion(0.5, KEYS[:8], SCREEN, np.tile(np.arange(32), (8, 1)))


@pytest.mark.parametrize("draw", [_noise, _bits])
def test_the_systems_entropy_is_fresh(draw: Callable[[Entropy], np.ndarray]) -> None:
    lasting = SystemEntropy()
    assert fresh(lambda: draw(SystemEntropy()))
    assert fresh(lambda: draw(lasting))


@pytest.mark.parametrize(
    ("entropy", "lasting", "draw"),
    [
        (faults.SeededEntropy, False, _noise),
        (faults.SeededEntropy, False, _bits),
        (faults.GlobalEntropy, False, _noise),
        (faults.ForkedEntropy, True, _noise),
    ],
)
def test_a_seeded_source_is_seen(
    entropy: Callable[[], Entropy], lasting: bool, draw: Callable[[Entropy], np.ndarray]
) -> None:
    shared = entropy()
    assert not fresh(lambda: draw(shared if lasting else entropy()))


def test_no_two_queries_or_releases_share_bits_or_noise() -> None:
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


def test_the_mechanism_draws_from_the_entropy_it_is_given() -> None:
    """Its outcomes are fresh with the system's entropy and repeat with a tape: no other source is
    mixed in.
    """
    even = PrivateKnn(k=3, threshold=2, sigma_screen=4.0, sigma_vote=4.0, sample_rate=0.5)

    def outcomes(entropy: Entropy) -> np.ndarray:
        (joint,) = (case for case in cases(even) if case.release == JOINT)
        return joint.run(Pair(3, 3, 2), True, 100, entropy)

    def draws(entropy: Entropy) -> list[np.ndarray]:
        """Both releases under fixed keys, one after the other."""
        return [_drawn(even, stage, entropy) for stage in (SCREEN, AGGREGATE)]

    assert len({outcomes(SystemEntropy()).tobytes() for _ in range(4)}) == 4
    first, again = draws(faults.SeededEntropy()), draws(faults.SeededEntropy())
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert 10 < first[0].sum() < 118


def _drawn(mechanism: PrivateKnn, stage: str, entropy: Entropy) -> np.ndarray:
    index = ExactIndex(np.zeros((6, 1), dtype=np.int8), np.arange(6))
    voters = Voters(index, np.arange(6) % 2, 2, np.zeros((128, 1), dtype=np.int8))
    return mechanism.draw(stage, voters, KEYS, entropy)


def row_by_row(make: Make, directory: Path, extra: np.ndarray) -> bool:
    """Whether an added record leaves the ledger's entries and all other records' features as they
    were.
    """
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
def test_row_by_row(tmp_path: Path, extra: list[float]) -> None:
    assert row_by_row(Teacher, tmp_path, np.array([extra], dtype=np.float32))


@pytest.mark.parametrize("extra", EXTRAS)
def test_centring_by_the_private_mean_is_seen(tmp_path: Path, extra: list[float]) -> None:
    assert not row_by_row(
        faults.CentredByPrivateMean, tmp_path, np.array([extra], dtype=np.float32)
    )
