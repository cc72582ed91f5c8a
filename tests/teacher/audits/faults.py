"""Mechanisms that are broken on purpose, each in one way, and claim what their parents claim."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from labelwall.teacher.audits.harness import LATER
from labelwall.teacher.mechanisms import batch, gradient, sums, votes_in_cells
from labelwall.teacher.mechanisms import voters as voters_module
from labelwall.teacher.mechanisms.attributes import COUNTS, GRID, PrivateKnnAttributes
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.batch import RadiusNeighbours
from labelwall.teacher.mechanisms.ind_knn import LABEL_NOISE, MIN_NEIGHBOURS, IndKnn
from labelwall.teacher.mechanisms.sums import LinearSums, NoisySum, ReverseKnn
from labelwall.teacher.mechanisms.values import MEAN, RANGE, PrivateKnnMean, Regression
from labelwall.teacher.mechanisms.votes import AGGREGATE, SCREEN, PrivateKnn
from labelwall.teacher.noise.entropy import Entropy, SystemEntropy
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.search.index import ByPerson
from labelwall.teacher.search.kernels import Similar
from labelwall.teacher.search.poisson_sampling import thinned
from labelwall.wall.label_kinds import STEPS, unpack

Scale = Callable[[float, str], float]
SURE = 1 - 2.5e-8  # the confidence of an audit in these tests
WIDE = 0.1  # a delta at which faults of labels and payments show in fewer trials
SUMS = (sums.PrivateLinear, sums.PrivateLinearAttributes, sums.PrivateLinearValue)

# --- noise ---


class Scaled(SystemEntropy):
    """Noise of another scale, and choices at another rate, than are asked for.

    ``scale(asked, release)``: what is drawn.
    """

    def __init__(self, entropy: Entropy, scale: Scale, rate: int = 1) -> None:
        self._entropy, self._scale, self._rate = entropy, scale, rate
        self.inclusion = entropy.inclusion  # type: ignore[method-assign]

    def discrete_gaussian(self, sigma: float, *rest: Any) -> np.ndarray:
        return self._drawn(self._entropy.discrete_gaussian, sigma, *rest)

    def discrete_laplace(self, scale: float, *rest: Any) -> np.ndarray:
        return self._drawn(self._entropy.discrete_laplace, scale, *rest)

    def _drawn(
        self, draw: Any, scale: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        scale = self._scale(scale, release)
        if not scale:
            return np.zeros((len(keys), width), dtype=np.int64)
        drawn: np.ndarray = draw(scale, keys, release, width)
        return drawn

    def choose(
        self, losses: np.ndarray, rates: Sequence[Fraction], keys: Sequence[str], release: str
    ) -> np.ndarray:
        if not self._scale(1.0, release):
            return losses.argmin(axis=1)
        return self._entropy.choose(losses, [self._rate * r for r in rates], keys, release)


def half(scale: float, release: str) -> float:
    return scale / 2


def drawing(mechanism: Mechanism, scale: Scale = half, rate: int = 1) -> Any:
    """The same mechanism, which draws other noise than is accounted."""
    kind: Any = type(mechanism)

    class Faulty(kind):
        def draw(self, *rest: Any) -> np.ndarray:
            *known, entropy = rest
            return super().draw(*known, Scaled(entropy, scale, rate))

        def answer(self, *rest: Any) -> Any:
            *known, entropy = rest[:6]
            return super().answer(*known, Scaled(entropy, scale, rate))

    return Faulty(**vars(mechanism))


def half_on(name: str) -> Scale:
    """Half the noise on one release."""
    return lambda scale, release: scale / 2 if release == name else scale


def silent(mechanism: Mechanism) -> Any:
    """The same mechanism, which answers 0 without noise where there is nobody."""
    kind: Any = type(mechanism)

    class SilentWhenEmpty(kind):
        def draw(self, stage: str, voters: Any, *rest: Any) -> np.ndarray:
            return np.where(len(voters.labels) == 0, 0, super().draw(stage, voters, *rest))

    return SilentWhenEmpty(**vars(mechanism))


# --- votes ---


class WithReplacement(PrivateKnn):
    """Samples round(gamma n) records with replacement and accounts for Poisson samples, as the
    published code does.
    """

    def votes(self, stage: str, voters: Any, keys: Sequence[str], entropy: Any) -> np.ndarray:
        n = len(voters.index)
        size = len(keys), round(self.sample_rate * n)
        ranks = np.sort(np.random.default_rng().integers(0, max(n, 1), size), axis=1)[:, : self.k]
        nearest = voters.index.prefix(voters.queries[:1], n)[0]  # the audit's queries are all alike
        classes = voters.labels[nearest[ranks]]
        return np.stack([(classes == c).sum(axis=1) for c in range(voters.num_classes)], axis=1)


class OneSample(PrivateKnn):
    """Screening and aggregation of a query see the same sample, with noise of their own."""

    def votes(self, stage: str, voters: Any, keys: Sequence[str], entropy: Any) -> np.ndarray:
        samples: dict[str, np.ndarray] = self.__dict__.setdefault("samples", {})
        if stage == AGGREGATE and all(key in samples for key in keys):
            return np.array([samples.pop(key) for key in keys])
        votes = super().votes(stage, voters, keys, entropy)
        if stage == SCREEN:
            samples.update(zip(keys, votes, strict=True))
        return votes


class SilentWhenEmpty(PrivateKnn):
    """Nobody voted: answers class 0, and the screening no, without noise."""

    def votes(self, *rest: Any) -> np.ndarray:
        self.__dict__["seen"] = super().votes(*rest)
        return self.__dict__["seen"]

    def draw(self, *rest: Any) -> np.ndarray:
        drawn = super().draw(*rest)
        return np.where(self.__dict__["seen"].sum(axis=1) == 0, 0, drawn)


def twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record within a radius votes twice."""
    monkeypatch.setattr(voters_module, "thinned", lambda *rest: 2 * thinned(*rest))


def everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is sampled: all within a radius vote."""
    monkeypatch.setattr(voters_module, "thinned", lambda votes, *rest: votes)


# --- attributes, values, cells, gradients ---


class Unclipped(PrivateKnnAttributes):
    """A neighbour votes for all its attributes, however many."""

    def sums(self, voters: Any, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        votes = unpack(voters.labels, voters.num_classes) * GRID
        return voters.votes(self.k, self.rate, keys, COUNTS, entropy, votes)


class TrueMean(PrivateKnnMean):
    """Divides by the number of neighbours: a single one moves the mean by half the range."""

    def draw_answer(self, voters: Any, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        counted = np.stack([2 * voters.labels - STEPS, np.ones_like(voters.labels)], axis=1)
        both = replace(voters, num_classes=2)
        votes = both.votes(self.k, self.rate, keys, MEAN, entropy, counted)
        noise = entropy.discrete_gaussian(self.require("sigma_mean") * RANGE, keys, MEAN, 1)[:, 0]
        return votes[:, 0] * self.k // np.maximum(votes[:, 1], 1) + noise


def weak(mechanism: Regression) -> Regression:
    """Few neighbours in few cells, nobody left out: sampling would only dilute a fault."""
    k = min(mechanism.k, 20) if mechanism.k != 100 else 3
    return replace(mechanism, k=k, sample_rate=1.0, cells=4, window=1)


class SilentCells(ReverseKnn):
    """No noise on entries for which nobody voted."""

    def draw(self, stage: str, voters: Any, *rest: Any) -> np.ndarray:
        drawn = super().draw(stage, voters, *rest)
        return np.where(voters.cell_votes(self.neighbours) == 0, 0, drawn)


class EveryCell(ReverseKnn):
    """A record votes ten times in its nearest cell and is accounted for once."""

    def sums(self, voters: Any, *rest: Any) -> np.ndarray:
        return 10 * super().sums(voters, *rest)


class CountedExactly(LinearSums):
    """No noise on the number of records, the last entry."""

    silent = -1

    def draw(self, stage: str, voters: Any, *rest: Any) -> np.ndarray:
        drawn = super().draw(stage, voters, *rest)
        drawn[:, self.silent] = voters.gradients(self.clip, self.label_space)[:, self.silent]
        return drawn


class SilentFirst(CountedExactly):
    """No noise on the first entry."""

    silent = 0


class Twice(NoisySum):
    """A record adds its part twice and is accounted for once."""

    def sums(self, *rest: Any) -> np.ndarray:
        return 2 * super().sums(*rest)


class Reused(NoisySum):
    """Noise is drawn once, and a later period's sum has it again."""

    def draw(self, stage: str, voters: Any, keys: Any, entropy: Any) -> np.ndarray:
        sums, noises = self.sums(voters, keys, entropy), vars(type(self))["noises"]
        name = keys[0].rpartition("-")[0]
        if name not in noises:
            noises[name] = entropy.discrete_gaussian(self.noise, keys, stage, sums.shape[1])
        return np.asarray(sums + noises[name])


def of_kind(fault: type[NoisySum], kind: type[NoisySum]) -> Any:
    noise = {kind.noise_field: 1.0}
    return type(f"{fault.__name__}{kind.__name__}", (fault, kind), {"noises": {}})(**noise)


def missing_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient, "clipped", lambda residuals, squares: residuals)


def clip_by_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attribute's residual is clipped by itself."""
    inner = gradient.clipped

    def by_column(residuals: np.ndarray, squares: np.ndarray) -> np.ndarray:
        return np.column_stack([inner(column[:, None], squares) for column in residuals.T])

    monkeypatch.setattr(gradient, "clipped", by_column)


# --- batches ---


class SilentBatch(RadiusNeighbours):
    """Nobody voted: class 0, without noise."""

    def draw(self, stage: str, voters: Any, *rest: Any) -> np.ndarray:
        drawn = super().draw(stage, voters, *rest)
        drawn[voters.ball_votes(drawn[:, 2]).sum(axis=1) == 0, 0] = 0
        return drawn


def unpaid_clique(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every query spends the whole epsilon, as if no balls overlapped."""

    monkeypatch.setattr(batch, "clique_bounds", lambda q, *_: np.ones(len(q), dtype=np.int64))


def exact_radii(scale: float, release: str) -> float:
    """Radii as they are, labels with their noise."""
    return 0.0 if release == batch.RADIUS_NOISE else scale


# --- individual budgets ---


def not_scaled(mechanism: IndKnn) -> Scale:
    """Noise on labels that is not scaled by the root of the count."""
    least = float(mechanism._noise(MIN_NEIGHBOURS))
    return lambda scale, release: least if release == LABEL_NOISE else scale


class SilentNeighbourhood(IndKnn):
    """No noise for an empty neighbourhood."""

    def answer(self, similar: Any, *rest: Any) -> Any:
        values, paid = super().answer(similar, *rest)
        values[[len(near.rows) == 0 for near in similar]] = 0
        return values, paid


class NobodyPays(IndKnn):
    def answer(self, similar: Any, left: Any, labels: Any, c: int, keys: Any, *rest: Any) -> Any:
        pieces = [
            super(NobodyPays, self).answer([s], left, labels, c, [k], *rest)
            for s, k in zip(similar, keys, strict=True)
        ]
        return np.concatenate([values for values, _ in pieces]), np.zeros_like(left)


class ChargesAfterTheBatch(NobodyPays):
    def answer(self, similar: Any, left: Any, *rest: Any) -> Any:
        values, _ = super().answer(similar, left, *rest)
        return values, self.reserve(similar, left)


# --- persons ---


def second_ballots(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows of a person vote, where they are near."""
    monkeypatch.setattr(ExactIndex, "units", property(lambda index: index))


def unclipped_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        votes_in_cells, "shared_votes", lambda cast, _, parts, **how: (cast.ravel(), parts)
    )


def unclipped_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gradient._summed

    def summed(x: np.ndarray, r: np.ndarray, size: int, gain: int) -> tuple[np.ndarray, int]:
        added, counted = whole(x, r, size, gain)
        return added * size, counted

    monkeypatch.setattr(gradient, "_summed", summed)


def shards_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person's rows lie in two shards, and each of them counts the person."""
    whole = ExactIndex.total

    def total(index: ExactIndex, count: Callable[..., np.ndarray], labels: np.ndarray) -> object:
        if index.persons is None:
            return whole(index, count, labels)
        parts = []
        for shard in (0, 1):
            rows = np.flatnonzero((index.ids // LATER + index.ids) % 2 == shard)
            part = ExactIndex(index.features[rows], index.ids[rows], index.persons[rows])
            parts.append(whole(part, count, labels[rows]))
        return sum(parts)

    monkeypatch.setattr(ExactIndex, "total", total)


def counted_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every similar row of a person is counted, and the person pays once."""

    def strongest(people: ByPerson, near: Similar, ids: np.ndarray, labels: np.ndarray) -> Similar:
        return Similar(people.numbers[near.rows], near.weights, labels[near.rows])

    monkeypatch.setattr(ByPerson, "strongest", strongest)
