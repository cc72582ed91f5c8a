"""Builders for tests: plans, ledgers and teachers over a handful of rows, entropy without noise."""

import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.ledger.database import open_database
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.ledger.url import Place
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.noise.entropy import Entropy, SystemEntropy
from labelwall.teacher.records.private_records import Records
from labelwall.teacher.teacher import Teacher
from labelwall.wall.guarantee import Unit
from labelwall.wall.messages import ExtractorSpec, Queries

LEDGER = "ledger.sqlite"
Make = Callable[..., Teacher]  # a Teacher class


def plan_of(
    mechanism: Mechanism,
    asked: int,
    answered: int | None = None,
    *,
    unit: Unit = "row",
    slots: int = 1,
    delta: float = 1e-5,
) -> Plan:
    """A plan of ``slots`` equal slots that any budget affords."""
    mechanism = mechanism.for_unit(unit)
    releases = mechanism.releases(asked, asked if answered is None else answered)
    return Plan(1e9, delta, (Slot(mechanism.fields(), releases),) * slots, unit)


def rows(n: int, seed: int, d: int = 6) -> np.ndarray:
    """float32 [n, d]; the rows of a seed are the same in every call, and no two seeds share one."""
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def bars(n: int, shape: tuple[int, int, int] = (28, 28, 1), seed: int = 0) -> np.ndarray:
    """uint8 [n, *shape]: noise with a bright bar, so that neighbours differ in more than noise."""
    images = np.random.default_rng(seed).integers(0, 60, (n, *shape)).astype(np.uint8)
    for i, image in enumerate(images):
        image[(3 * i) % (shape[0] - 4) :][:4] += 120
    return images


def ledger_in(folder: Path, plan: Plan, *, unsafe: bool, place: Place | None = None) -> Ledger:
    """The ledger, new or known, of a folder, or at a ``place``."""
    folder.mkdir(parents=True, exist_ok=True)
    place = place or folder / LEDGER
    if open_database(place).exists():
        return Ledger(place)
    return Ledger.create(place, dataset="d", plan=plan, unsafe=unsafe)


def teach(
    folder: Path,
    plan: Plan,
    records: Records,
    spec: ExtractorSpec,
    entropy: Entropy | None = None,
    batch_size: int = 16,
    make: Make = Teacher,
    place: Place | None = None,
) -> Teacher:
    """A teacher of ``spec.num_classes`` under ``spec``, on the ledger that ``ledger_in`` gives."""
    entropy = entropy or SystemEntropy()
    ledger = ledger_in(folder, plan, unsafe=entropy.unsafe, place=place)
    teacher = make(
        lambda: records, ledger, folder, spec.num_classes, entropy, batch_size=batch_size
    )
    teacher.use_extractor(spec)
    return teacher


def build(
    make: Make,
    directory: Path,
    rows: np.ndarray,
    labels: np.ndarray,
    mechanism: Mechanism,
    *,
    asked: int,
    answered: int,
    entropy: Entropy | None = None,
) -> Teacher:
    """A teacher of two classes whose ledger certifies. ``rows``: float32 [n, 2]; ids end at -1, so
    a new first row is a new id.
    """
    directory.mkdir()
    plan, size = plan_of(mechanism, asked, answered), max(asked, 1)
    ledger_in(directory, plan, unsafe=False)
    records = Records(rows, labels, np.arange(len(rows)) - len(rows))
    return teach(directory, plan, records, ExtractorSpec("raw", (2,), 2), entropy, size, make)


def until(true: Callable[[], object], seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def alike(n: int) -> Queries:
    """``n`` queries, each of another identity, whose quantised features are all (23, 0)."""
    return Queries(np.stack([np.ones(n), 1e-7 * np.arange(n)], axis=1).astype(np.float32))


class Draw(NamedTuple):
    """Noise that was asked for: ``width`` numbers for each of ``queries``."""

    law: str
    scale: float
    release: str
    queries: int
    width: int


class Watched:
    """A source of noise, and ``heard(law, first, keys, release)`` before each draw.

    ``law``: the method's name; ``first``: its first argument, a scale or a probability.
    """

    def __init__(self, heard: Callable[..., object], source: Entropy | None = None) -> None:
        self._heard, self._source = heard, source or SystemEntropy()
        self.unsafe = self._source.unsafe

    def __getattr__(self, law: str) -> Any:
        def draw(first: Any, *rest: Any) -> np.ndarray:
            keys, release = rest[1:] if law == "choose" else rest[:2]
            self._heard(law, first, keys, release)
            return getattr(self._source, law)(first, *rest)

        return draw


class ZeroNoise:
    """No noise, everybody in the sample, the best column of every choice; notes what was drawn."""

    unsafe = True

    def __init__(self) -> None:
        self.drawn: list[Draw] = []
        self.choices: list[tuple[str, np.ndarray, Fraction]] = []  # release, losses, rate

    def inclusion(
        self, probability: float, keys: Sequence[str], release: str, ids: np.ndarray
    ) -> np.ndarray:
        return np.ones(ids.shape, dtype=bool)

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        return self._zeros("gaussian", sigma, keys, release, width)

    def discrete_laplace(
        self, scale: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        return self._zeros("laplace", scale, keys, release, width)

    def choose(
        self, losses: np.ndarray, rates: Sequence[Fraction], keys: Sequence[str], release: str
    ) -> np.ndarray:
        self.choices += [(release, row, rate) for row, rate in zip(losses, rates, strict=True)]
        return losses.argmin(axis=1)

    def _zeros(
        self, law: str, scale: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        self.drawn.append(Draw(law, scale, release, len(keys), width))
        return np.zeros((len(keys), width), dtype=np.int64)
