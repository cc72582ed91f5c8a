"""Noisy votes on a query: screened by how many agree, then the class that leads.

The nearest neighbours, a ball's records or PATE's classifiers vote: a kind says which, and its
fields. Values (values.py) are screened likewise.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from ...wall.errors import InvalidInput
from ...wall.messages import Value
from ...wall.questions import RowForm
from ..accounting.plan import MAX_TEACHERS, Release
from .base import Mechanism
from .fields import count, more_noise, nearest, noise_scale, param, ratio, sampling

if TYPE_CHECKING:
    from ..noise.entropy import Entropy
    from .voters import Keys, Voters

SCREEN, AGGREGATE = "screen", "aggregate"
LANDMARKS = 2_000  # public rows that radii are measured by, at most
# Deviations of the noise above the threshold at which a plurality of a ball is cut off: it passes
# but once in 10^9 queries, whether it is cut or not.
CUT = 6
MOST_VOTES = 10**6  # of the curve
# Of a classifier of PATE, by a guess of the records; the most classifiers then.
RECORDS, MOST_TEACHERS = 20, 250


def teachers_of(records: int) -> int:
    """How many classifiers PATE trains on so many records."""
    return min(MOST_TEACHERS, max(2, records // RECORDS))


@dataclass(frozen=True)
class Screened(Mechanism):
    """Answers the queries that pass a screening; all queries if there is no threshold.

    The screening is one bit: whether the ``largest`` count of votes, cut off at ``max_votes``, plus
    discrete Gaussian noise exceeds the threshold. One record moves that count by at most 1, so the
    bit costs ``curves.screening_rdp``. If votes are sampled, screening and answer have a sample
    each, so they compose as ordinary adaptive releases.

    Class attributes:
        aggregate: the name of the answer's release.
        noise_field: the field with the scale of the answer's noise.
        sensitivity: bound on how far one record moves what that noise is added to.
    """

    if TYPE_CHECKING:

        @property
        def threshold(self) -> int:
            """A field of the kinds that screen: null, or not there, if nothing is screened."""

    aggregate: ClassVar[str]
    noise_field: ClassVar[str] = "sigma_vote"
    sensitivity: ClassVar[float] = 1.0
    limit = "k"
    persons = True

    @property
    def screened(self) -> bool:
        """Whether there is a threshold."""
        return vars(self).get("threshold") is not None

    @property
    def passed_by_noise(self) -> float | None:
        if not self.screened or self.needs:
            return None
        margin = (self.threshold + 0.5) / self.require("sigma_screen")
        return math.erfc(margin / math.sqrt(2)) / 2

    @property
    def stages(self) -> tuple[str, ...]:
        return (SCREEN, self.aggregate) if self.screened else (self.aggregate,)

    @property
    def uncalibrated(self) -> tuple[str, ...]:
        """The missing fields that are needed: none of the screening if there is none."""
        names = super().uncalibrated
        return tuple(n for n in names if n != "sigma_screen" or self.screened)

    @abstractmethod
    def largest(self, voters: Voters, keys: Keys, entropy: Entropy) -> np.ndarray:
        """The count that the screening is about, of a new sample: int64 [n_queries]."""

    @abstractmethod
    def answer_release(self, cap: int) -> Release:
        """The price of ``cap`` answers."""

    @abstractmethod
    def draw_answer(self, voters: Voters, keys: Keys, entropy: Entropy) -> np.ndarray:
        """Noisy answers of a new sample: int64 [n_queries]."""

    def with_noise(self, level: float, asked: int) -> Self:
        sigma = level * self.sensitivity
        screen = vars(self).get("screen_ratio", 1.0) * sigma
        filled = {"sigma_screen": more_noise(screen), self.noise_field: more_noise(sigma)}
        return self.with_values(**filled)

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """``asked`` screenings and ``answered`` answers; without a screening ``asked`` answers."""
        if not self.screened:
            return (self.answer_release(asked),)
        screening = {
            "max_votes": self.max_votes,
            "threshold": self.threshold,
            "sigma": self.require("sigma_screen"),
            "sample_rate": self.rate,
        }
        return Release(SCREEN, "screening", screening, asked), self.answer_release(answered)

    def tally(self, voters: Voters) -> np.ndarray | None:
        voters.rank(self.max_votes, self.rate)
        return None

    def draw(self, stage: str, voters: Voters, keys: Keys, entropy: Entropy) -> np.ndarray:
        """Screening bits, or answers: int64 [n_queries]."""
        if stage != SCREEN:
            return self.draw_answer(voters, keys, entropy)
        largest = np.minimum(self.largest(voters, keys, entropy), self.max_votes)
        noise = entropy.discrete_gaussian(self.require("sigma_screen"), keys, stage, 1)
        return (largest + noise[:, 0] > self.threshold).astype(np.int64)

    def next_stage(self, results: Mapping[str, Value]) -> str | None:
        """A query that was rejected is settled."""
        rejected = SCREEN in results and results[SCREEN] != 1
        return None if rejected else super().next_stage(results)


def vote_threshold(default: int, below: int | None = None) -> Any:
    """The threshold of a screening by the plurality."""
    text = "the noisy plurality must exceed it for a query to be answered"
    return param(default, text, unit="votes", ge=0, lt=below)


@dataclass(frozen=True)
class Votes(Screened):
    """The class with the most noisy votes, if the noisy plurality passes the threshold.

    Guarantee, for one query under add/remove of one record, which moves the votes by 0, by e_a or
    by e_a - e_b, with discrete Gaussian Z: the bit max_j n_j + Z > threshold costs
    ``curves.screening_rdp``, and the argmax of n_j + Z_j costs ``curves.argmax_rdp``. If a record
    displaces no other, its swap is left out.

    Class attributes:
        swap: whether a record may move the votes by e_a - e_b, or by e_a alone.
    """

    aggregate = AGGREGATE
    sensitivity = math.sqrt(2)
    swap: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.screened and self.limit and self.threshold > vars(self)[self.limit]:
            rule = f"between 0 and {self.limit}"
            raise InvalidInput("mechanism.threshold", rule, self.threshold)

    def votes(self, stage: str, voters: Voters, keys: Keys, entropy: Entropy) -> np.ndarray:
        """Votes of a new sample, of its k nearest records: int64 [n_queries, n_classes]."""
        return voters.votes(self.max_votes, self.rate, keys, stage, entropy)

    def noise(self, keys: Keys, width: int, entropy: Entropy) -> np.ndarray:
        """Noise on the votes: int64 [n_queries, width]."""
        return entropy.discrete_gaussian(self.require("sigma_vote"), keys, AGGREGATE, width)

    def answer_release(self, cap: int) -> Release:
        sigma, swap = self.require("sigma_vote"), {} if self.swap else {"swap": False}
        argmax = {"sigma": sigma, "sample_rate": self.rate, **swap}
        return Release(AGGREGATE, "argmax", argmax, cap)

    def largest(self, voters: Voters, keys: Keys, entropy: Entropy) -> np.ndarray:
        return self.votes(SCREEN, voters, keys, entropy).max(axis=1)

    def draw_answer(self, voters: Voters, keys: Keys, entropy: Entropy) -> np.ndarray:
        """Ties go to the lowest class."""
        votes = self.votes(AGGREGATE, voters, keys, entropy)
        return (votes + self.noise(keys, votes.shape[1], entropy)).argmax(axis=1)


@dataclass(frozen=True)
class SampledVotes(Votes):
    """Votes of records of a new Poisson sample for each release, screened by their plurality."""

    threshold: int = vote_threshold(180)
    sigma_screen: float | None = noise_scale("the plurality")
    sigma_vote: float | None = noise_scale("each class's count")
    sample_rate: float = sampling(0.15)
    screen_ratio: float = ratio()

    rehearsed = True

    def sized_for(self, records: int, classes: int, rows: int, votes: int | None) -> Self:
        votes = votes or max(1, records // (2 * classes))
        return self.sized(votes, 1.0, records, threshold=votes // 2)

    @abstractmethod
    def expected_votes(self, records: int) -> float:
        """Voters of a query, a mean, of so many records."""

    @classmethod
    @abstractmethod
    def sized(cls, votes: int, sample_rate: float, records: int, **fields: float) -> Self:
        """A mechanism with ``votes`` expected voters of so many records; ``fields``: the others."""


@dataclass(frozen=True)
class PrivateKnn(SampledVotes):
    """Votes of the k nearest of a new Poisson sample, screened (CVPR20 Algorithm 1).

    Guarantee: that of ``Votes``, Poisson-subsampled. A sampled record joins the k nearest (e_a) or
    displaces one of them (e_a - e_b).
    """

    kind: Literal["private_knn"] = "private_knn"
    k: int = nearest(300)

    def expected_votes(self, records: int) -> float:
        return min(float(self.k), self.sample_rate * records)

    @classmethod
    def sized(cls, votes: int, sample_rate: float, records: int, **fields: Any) -> Self:
        return cls(k=votes, sample_rate=sample_rate, **fields)


@dataclass(frozen=True)
class PrivateRadius(SampledVotes):
    """Votes of all of a new Poisson sample within a public radius, screened by their plurality.

    A query's radius is its distance to its j-th nearest landmark (a public row), with j = share x
    landmarks. Dense regions get a small one, so that about as many records vote everywhere.

    Guarantee: that of ``Votes`` without a swap, Poisson-subsampled: a record moves the votes by 0
    or e_a, whatever the radius, so that less noise hides it than one of the k nearest. Proof:
    docs/privacy.md, section 5.
    """

    kind: Literal["private_radius"] = "private_radius"
    threshold: int = vote_threshold(150, MOST_VOTES)
    share: float = param(
        0.03,
        "part of the public rows that a query's radius has within; about share x "
        "sample_rate of the private records vote",
        gt=0,
        le=1,
    )

    sensitivity = 1.0
    swap = False
    limit = ""

    @property
    def query_form(self) -> RowForm:
        return RowForm(landmarks=LANDMARKS)

    @property
    def max_votes(self) -> int:
        return min(self.threshold + math.ceil(CUT * self.require("sigma_screen")), MOST_VOTES)

    def expected_votes(self, records: int) -> float:
        return self.share * self.sample_rate * records

    @classmethod
    def sized(cls, votes: int, sample_rate: float, records: int, **fields: Any) -> Self:
        share = min(1.0, float(f"{votes / (sample_rate * records):.4g}"))
        return cls(share=share, sample_rate=sample_rate, **fields)

    def tally(self, voters: Voters) -> np.ndarray:
        return voters.within(voters.radii(self.share))

    def votes(self, stage: str, voters: Voters, keys: Keys, entropy: Entropy) -> np.ndarray:
        radii = voters.radii(self.share)
        return voters.sampled_ball_votes(radii, self.sample_rate, keys, stage, entropy)


@dataclass(frozen=True)
class NaiveKnn(Votes):
    """Votes of the k nearest of all records (UAI23 Algorithm 2), a baseline.

    Ind-KNN and Private-kNN improve upon it. Guarantee: that of ``Votes`` without sampling; every
    query is answered, and charged. A record joins the k nearest (e_a) or displaces one (e_a - e_b).
    """

    kind: Literal["naive_knn"] = "naive_knn"
    k: int = nearest(300)
    sigma_vote: float | None = noise_scale("each class's count")


@dataclass(frozen=True)
class Pate(Votes):
    """PATE (Papernot et al. 2017, 2018): votes of classifiers trained on disjoint shards.

    One record changes one classifier (teacher/classifiers), so the votes move by e_a - e_b. Nothing
    is sampled, hence no amplification. Only data-independent certificates are used.
    """

    teachers: int = count(
        250,
        "disjoint shards of the private records; each is one classifier and one vote",
        MAX_TEACHERS,
    )
    classifier: Literal["linear", "cnn"] = param(
        "linear",
        "what is trained on a shard: linear (ridge regression on the round's features, anew each "
        "round) or cnn (a small network on the images themselves, once)",
    )

    limit = "teachers"

    def sized_for(self, records: int, classes: int, rows: int, votes: int | None) -> Self:
        return replace(self, teachers=votes or teachers_of(records))

    @property
    def needs(self) -> tuple[tuple[Literal["linear", "cnn"], int]]:
        return ((self.classifier, self.teachers),)

    def tally(self, voters: Voters) -> np.ndarray:
        if self.classifier == "linear":
            return voters.ensembles[self.teachers].votes(voters.queries)
        assert voters.inputs is not None
        return voters.networks[self.teachers].votes(voters.inputs)

    def votes(self, stage: str, voters: Voters, keys: Keys, entropy: Entropy) -> np.ndarray:
        return self.tally(voters) if voters.tally is None else voters.tally


@dataclass(frozen=True)
class Lnmax(Pate):
    """LNMAX (Papernot et al. 2017, section 2.1): argmax of counts with Laplace noise.

    Guarantee, for one query: releasing all noisy counts is (2 / scale)-DP by their L1 sensitivity
    2, and the argmax post-processes them: ``curves.laplace_rdp``. The noise is the discrete Laplace
    distribution, for which the tighter curve of continuous noise does not hold. Every query is
    answered.
    """

    kind: Literal["lnmax"] = "lnmax"
    scale: float | None = noise_scale("every class's count, discrete Laplace (1 / gamma)")

    noise_field = "scale"
    sensitivity = 2.0

    def answer_release(self, cap: int) -> Release:
        priced = {"scale": self.require("scale"), "sensitivity": self.sensitivity}
        return Release(AGGREGATE, "laplace", priced, cap)

    def noise(self, keys: Keys, width: int, entropy: Entropy) -> np.ndarray:
        return entropy.discrete_laplace(self.require("scale"), keys, AGGREGATE, width)


@dataclass(frozen=True)
class Gnmax(Pate):
    """GNMAX (Papernot et al. 2018, Definition 6): argmax of counts with Gaussian noise.

    Guarantee: that of ``Votes`` without sampling. Every query is answered.
    """

    kind: Literal["gnmax"] = "gnmax"
    sigma_vote: float | None = noise_scale("every class's count")


@dataclass(frozen=True)
class ConfidentGnmax(Pate):
    """Confident-GNMAX (Papernot et al. 2018, Algorithm 1): noisy screening, then GNMAX.

    Guarantee: that of ``Votes`` without sampling. Each release draws its own noise.
    """

    kind: Literal["confident_gnmax"] = "confident_gnmax"
    threshold: int = vote_threshold(200)
    sigma_screen: float | None = noise_scale("the plurality")
    sigma_vote: float | None = noise_scale("every class's count")
    screen_ratio: float = ratio()

    def sized_for(self, records: int, classes: int, rows: int, votes: int | None) -> Self:
        teachers = votes or teachers_of(records)
        threshold = teachers * self.threshold // self.teachers
        return replace(self, teachers=teachers, threshold=threshold)
