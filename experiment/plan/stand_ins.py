"""Public rows that stand for a teacher's records in a rehearsal.

The mechanism counts and draws by its own code. What it counts among few rows is multiplied up to
the expected number of records, and so varies more than counts among many records do. So much
less noise is added, but at least MIN_VARIANCE of its variance. With little noise and few labelled
rows a rehearsal is therefore pessimistic.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial

import numpy as np

from ...teacher.accounting.plan import FULL
from ...teacher.mechanisms.base import Mechanism
from ...teacher.mechanisms.counts_in_balls import ball_votes
from ...teacher.mechanisms.ind_knn import IndKnn
from ...teacher.mechanisms.voters import Voters
from ...teacher.noise.entropy import Entropy
from ...teacher.search.cpu import ExactIndex
from ...teacher.search.kernels import Similar
from ...wall.matrices import Matrix, NoisyCounts
from ...wall.messages import Receipt
from .tuning import GROUPS, MIN_VARIANCE

MOST_COPIED = 10_000  # records of individual budgets that are counted one by one
MOST_FACTOR = 100.0  # more records are rehearsed as so many times these
MIN_SIGMA = 1e-3  # of a label


@dataclass
class StandInNoise(Entropy):
    """Continuous noise by numpy, of the variance that counts among few rows leave to it.

    ``excess``: variance to add to the noise on each count, mostly below 0: float64 [q, c];
    ``leading``: the same for each query's largest count, [q, 1].
    """

    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    excess: np.ndarray = field(default_factory=lambda: np.zeros((1, 1)))
    leading: np.ndarray = field(default_factory=lambda: np.zeros((1, 1)))

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        """Whole numbers, int64 [q, width]."""
        excess = self.excess if width == self.excess.shape[1] else self.leading
        variance = np.maximum(sigma**2 + excess, MIN_VARIANCE * sigma**2)
        noise = self.rng.normal(size=(len(keys), width)) * np.sqrt(variance)
        return np.rint(noise).astype(np.int64)

    def choose(
        self, losses: np.ndarray, rates: Sequence[Fraction], keys: Sequence[str], release: str
    ) -> np.ndarray:
        """The exponential mechanism's columns, by Gumbel noise: int64 [q]."""
        likely = -np.array([float(rate) for rate in rates])[:, None] * losses
        columns: np.ndarray = (likely + self.rng.gumbel(size=losses.shape)).argmax(axis=1)
        return columns


@dataclass(frozen=True)
class ScaledVoters(Voters):
    """PUBLIC rows that vote in place of ``records`` many records.

    A query's votes are those of the part of the rows nearest to it that would vote among the
    records. k votes for classes of shares p vary by k p; by k^2 p / r if r rows stand for them.
    ``known``: what was counted already, since candidates share it; ``noise``: of sums.
    """

    index: ExactIndex = field(repr=False)
    records: int = 1
    noise: StandInNoise = field(default_factory=StandInNoise, repr=False)
    known: dict[object, np.ndarray] = field(default_factory=dict, repr=False)

    def radii(self, share: float) -> np.ndarray:
        """See ``Voters.radii``."""
        if share not in self.known:
            self.known[share] = super().radii(share)
        return self.known[share]

    def votes(
        self,
        k: int,
        sample_rate: float,
        keys: Sequence[str],
        release: str,
        entropy: Entropy,
        ballots: np.ndarray | None = None,
    ) -> np.ndarray:
        """See ``Voters.votes``: expected votes, rounded."""
        sample = sample_rate * self.records
        voters = min(float(k), sample)
        rows = max(1.0, voters / sample * len(self.labels))
        if "near" not in self.known:
            self.known["near"] = self.index.units.prefix(self.queries, len(self.labels))
        near = self.known["near"][:, : math.ceil(rows)]
        weights = np.ones(near.shape)
        weights[:, -1] -= near.shape[1] - rows  # a part of the last row's vote
        weights *= voters / rows
        assert isinstance(entropy, StandInNoise)
        if ballots is not None:
            entropy.excess = np.zeros((1, ballots.shape[1]))
            return np.rint(np.einsum("qr,qrc->qc", weights, ballots[near])).astype(np.int64)
        cells = self.labels[near] + self.num_classes * np.arange(len(near))[:, None]
        votes = np.bincount(cells.ravel(), weights.ravel(), len(near) * self.num_classes)
        votes = votes.reshape(len(near), self.num_classes)
        entropy.excess = (1 - voters / rows) * votes
        most = votes.max(axis=1, keepdims=True)
        entropy.leading = (1 - voters / rows) * most * (1 - most / voters)
        return np.rint(votes).astype(np.int64)

    def sampled_ball_votes(
        self,
        squared_radii: np.ndarray,
        sample_rate: float,
        keys: Sequence[str],
        release: str,
        entropy: Entropy,
    ) -> np.ndarray:
        """See ``Voters.sampled_ball_votes``: expected votes, rounded."""
        factor = sample_rate * self.records / len(self.labels)
        if (key := squared_radii.tobytes()) not in self.known:
            count = partial(ball_votes, self.queries, squared_radii, self.num_classes)
            self.known[key] = self.index.total(count, self.labels)
        votes = factor * self.known[key]
        assert isinstance(entropy, StandInNoise)
        entropy.excess = (1 - factor) * votes
        entropy.leading = entropy.excess.max(axis=1, keepdims=True)
        return np.rint(votes).astype(np.int64)

    def _total(self, count: Callable[..., np.ndarray], *public: object) -> np.ndarray:
        """Counts of the rows, multiplied up. Parts of these say how much their sum varies."""
        parts = np.array_split(np.arange(len(self.labels)), min(GROUPS, len(self.labels)))
        features, factor = self.index.features, self.records / len(self.labels)
        sums = np.stack(
            [
                ExactIndex(features[part], part).total(partial(count, *public), self.labels[part])
                for part in parts
            ]
        )
        spread = len(parts) * sums.var(axis=0, ddof=min(1, len(parts) - 1))
        self.noise.excess = (factor - factor**2) * spread
        return np.rint(factor * sums.sum(axis=0)).astype(np.int64)


def conversations(
    mechanism: IndKnn, voters: ScaledVoters, asked: int, noise: StandInNoise
) -> np.ndarray:
    """Labels, int64 [q], by individual budgets that are to last for ``asked`` queries.

    A row stands for equal records, which pay alike: for as many copies as are counted fast, times a
    factor c. Noise of 1 / c on counts, 1 / sqrt(c) on labels and a budget of c^2 rho give copies
    the same answers as c times as many records, but for MIN_NEIGHBOURS. With more queries than
    there are rows, these share a part of the budgets; with fewer, each part has whole ones.
    """
    rows, queries = len(voters.labels), len(voters.queries)
    copies = max(1, min(voters.records, MOST_COPIED) // rows)
    factor = min(voters.records / (rows * copies), MOST_FACTOR)
    scaled = replace(
        mechanism,
        sigma_count=mechanism.require("sigma_count") / factor,
        sigma_label=max(mechanism.sigma_label / math.sqrt(factor), MIN_SIGMA),
        rho=mechanism.require("rho") * factor**2,
    )
    labels, near = np.repeat(voters.labels, copies), mechanism.select(voters.length)
    answers = []
    for part in np.array_split(np.arange(queries), max(1, queries // asked)):
        similar = [
            Similar(
                (found.rows[:, np.newaxis] * copies + np.arange(copies)).ravel(),
                np.repeat(found.weights, copies),
            )
            for found in voters.select(part.tolist()).similar(near, mechanism.hashing())
        ]
        left = np.full(len(labels), round(FULL * min(1.0, len(part) / asked)))
        values, _ = scaled.answer(
            similar, left, labels, voters.num_classes, [""] * len(part), noise
        )
        answers.append(values[:, 1])
    return np.concatenate(answers)


@dataclass(frozen=True)
class RehearsingTeacher:
    """Counts PUBLIC rows in place of ``records`` many records.

    ``features``: int8 [n, d]; ``labels``: int64 [n]; ``length``: of a unit vector.
    """

    mechanism: Mechanism
    features: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    classes: int
    length: float
    records: int
    rng: np.random.Generator = field(repr=False)

    def count(self, matrix: Matrix) -> NoisyCounts:
        """See ``Teacher.count``; nothing is charged."""
        noise, (stage,) = StandInNoise(self.rng), self.mechanism.stages
        index, one = ExactIndex(self.features, np.arange(len(self.labels))), matrix.entries[None]
        voters = ScaledVoters(
            index, self.labels, self.classes, one, self.length, records=self.records, noise=noise
        )
        drawn = self.mechanism.draw(stage, voters, ["rehearsal"], noise)
        rows = self.mechanism.query_form.rows
        receipt = Receipt(1, 0, {stage: 1}, {stage: 0}, 0, "")
        return NoisyCounts(drawn.reshape(rows, -1), receipt)
