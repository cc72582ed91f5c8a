"""Softmax regression on the extractor's features by a few noisy gradients over all records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from labelwall.teacher.accounting.plan import Release
from labelwall.teacher.mechanisms.base import Asks, Mechanism
from labelwall.teacher.noise.scales import more_noise
from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import ABSTAINED, Outcome, Value
from labelwall.wall.weights import MAX_DIMENSIONS, SENSITIVITY

if TYPE_CHECKING:  # loading the search would load torch
    from labelwall.teacher.mechanisms.voters import Voters
    from labelwall.teacher.noise.entropy import Entropy
    from labelwall.teacher.statistical_audit import EmpiricalFinding

SUM = "sum"
MAX_STEPS = 100
MIN_SIGMA, MAX_SIGMA = 0.001, 900.0  # times SENSITIVITY within the curves' range
MIN_CLIP, MAX_CLIP = 0.01, 1.5  # no residual is longer than sqrt(2)


@dataclass(frozen=True)
class PrivateLinear(Mechanism):
    """A linear classifier: every step releases the sum of all records' clipped gradients, noisy.

    Guarantee, for one step under add/remove of one record: the record adds an integer vector of
    length SENSITIVITY at most, whatever the weights, its features and the other records, and
    changes nothing else; every entry of the sum gets discrete Gaussian noise of scale
    ``sigma`` * SENSITIVITY. The cost is that of one Gaussian release (``curves.gaussian_rdp``).
    Steps compose; weights may depend on earlier sums. All fields are publishable and fixed without
    looking at private rows.

    Args:
        kind: the mechanism's name.
        steps: noisy sums of a round, a count.
        sigma: noise of one step in sensitivities (a noise multiplier); null: what the
            budget asks for.
        clip: length of the residuals (probabilities minus label, at most 1.41) above which they are
            shrunk, at inputs of a unit vector's length.
        axes: principal axes of the public rows' features that the classifier looks at, a count,
            each divided by the root of its deviation; null: the features as they are. The noise on
            every axis is the same, so that few records and a small budget want few of them; free.
        margin: a public row is labelled only if its best class leads the next by more, in
            probability; free.
    """

    kind: Literal["private_linear"] = "private_linear"
    steps: int = 2
    sigma: float | None = None
    clip: float = 1.0
    axes: int | None = None
    margin: float = 0.0

    stages = (SUM,)
    solved = ("sigma",)
    sharded = True
    persons = True

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= MAX_STEPS:
            raise InvalidInput("mechanism.steps", f"from 1 to {MAX_STEPS}", self.steps)
        if self.sigma is not None and not MIN_SIGMA <= self.sigma <= MAX_SIGMA:
            rule = f"from {MIN_SIGMA} to {MAX_SIGMA:g}"
            raise InvalidInput("mechanism.sigma", rule, self.sigma)
        if not MIN_CLIP <= self.clip <= MAX_CLIP:
            raise InvalidInput("mechanism.clip", f"from {MIN_CLIP} to {MAX_CLIP}", self.clip)
        if self.axes is not None and not 1 <= self.axes <= MAX_DIMENSIONS:
            raise InvalidInput("mechanism.axes", f"from 1 to {MAX_DIMENSIONS}", self.axes)
        if not 0 <= self.margin < 1:
            raise InvalidInput("mechanism.margin", "at least 0 and below 1", self.margin)

    @property
    def asks(self) -> Asks:
        """The weights of a round's steps."""
        return Asks(
            margin=self.margin,
            noise=self.sigma,
            steps=self.steps,
            clip=self.clip,
            axes=self.axes,
        )

    def with_noise(self, level: float, asked: int) -> PrivateLinear:
        """See ``Mechanism.with_noise``. A sum moves by SENSITIVITY, the unit of sigma."""
        return self.filled(sigma=more_noise(min(level, MAX_SIGMA)))

    def probes(self) -> tuple[tuple[Mechanism, tuple[str, ...]], ...]:
        """See ``Mechanism.probes``."""
        from labelwall.teacher.mechanisms.private_linear import audit

        return ((audit.probe_sums(self), ()),)

    def audit(
        self, *, delta: float, trials: int, confidence: float, releases: tuple[str, ...] = ()
    ) -> EmpiricalFinding:
        """See ``Mechanism.audit``."""
        from labelwall.teacher.mechanisms.private_linear import audit

        return audit.audit_sums(self, delta=delta, trials=trials, confidence=confidence)

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """The price of ``asked`` noisy sums; each of them is answered.

        Raises InvalidInput where sigma is not filled in (``with_noise``).
        """
        noisy = {
            "sigma": self._noise(),
            "sensitivity": float(SENSITIVITY),
            "sampling_probability": 1.0,
        }
        return (Release(SUM, "gaussian", noisy, asked),)

    def draw(self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """Noisy sums: int64 [n_queries, (d + 1) * n_classes + 1].

        ``keys``: the weights' identities, charged for this stage already.
        """
        sums = voters.gradients(self.clip)
        return sums + entropy.discrete_gaussian(self._noise(), keys, stage, sums.shape[1])

    def outcome(self, results: Mapping[str, Value]) -> tuple[Outcome, int]:
        """Weights have a sum and no label; rows get labels from the classifier that is fitted."""
        return Outcome.ANSWERED, ABSTAINED

    def _noise(self) -> float:
        """Scale of the noise in units of the sums."""
        return self.number("sigma") * SENSITIVITY
