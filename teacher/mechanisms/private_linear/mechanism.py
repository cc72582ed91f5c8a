"""A linear model of the extractor's features by noisy gradients over all records.

The label space decides a record's residuals: of classes (softmax regression), of attributes (one
logistic regression each) or of a value (linear regression).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np

from ....wall.errors import InvalidInput
from ....wall.matrices import MAX_DIMENSIONS, MAX_GAIN, SENSITIVITY
from ....wall.messages import ABSTAINED, Outcome, Value
from ....wall.unit import Unit
from ...accounting.plan import Release
from ...noise.scales import more_noise
from ..base import Asks, Mechanism

if TYPE_CHECKING:
    from ...noise.entropy import Entropy
    from ..voters import Voters

SUM = "sum"
MAX_STEPS = 100
MIN_SIGMA, MAX_SIGMA = 0.001, 900.0  # times SENSITIVITY within the curves' range
MIN_CLIP = 0.01


@dataclass(frozen=True)
class LinearSums(Mechanism):
    """Base of all three: every step releases the sum of all records' clipped gradients, noisy.

    Guarantee, for one step under add/remove of one record: the record adds an integer vector of
    length SENSITIVITY at most, whatever the weights, its features, its label and the other records,
    and changes nothing else; every entry of the sum gets discrete Gaussian noise of scale
    ``sigma`` * SENSITIVITY. The cost is that of one Gaussian release (``curves.gaussian_rdp``).
    Steps compose; weights may depend on earlier sums. All fields are publishable and fixed without
    looking at private rows.
    """

    steps: int = 2
    sigma: float | None = None
    clip: float = 1.0
    axes: int | None = None
    gain: int | None = None

    stages = (SUM,)
    solved = ("sigma",)
    by_unit = ("gain",)
    sharded = True
    persons = True
    max_clip: ClassVar[float] = 1.0
    persons_gain: ClassVar[int] = 2  # of more the count of the records becomes uncertain
    clips: ClassVar[tuple[float, ...]] = ()  # and margins, that a search tries
    margins: ClassVar[tuple[float, ...]] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= MAX_STEPS:
            raise InvalidInput("mechanism.steps", f"from 1 to {MAX_STEPS}", self.steps)
        if self.sigma is not None and not MIN_SIGMA <= self.sigma <= MAX_SIGMA:
            rule = f"from {MIN_SIGMA} to {MAX_SIGMA:g}"
            raise InvalidInput("mechanism.sigma", rule, self.sigma)
        if not MIN_CLIP <= self.clip <= self.max_clip:
            raise InvalidInput("mechanism.clip", f"from {MIN_CLIP} to {self.max_clip:g}", self.clip)
        if self.axes is not None and not 1 <= self.axes <= MAX_DIMENSIONS:
            raise InvalidInput("mechanism.axes", f"from 1 to {MAX_DIMENSIONS}", self.axes)
        if self.gain is not None and not 1 <= self.gain <= MAX_GAIN:
            raise InvalidInput("mechanism.gain", f"from 1 to {MAX_GAIN}", self.gain)

    def for_unit(self, unit: Unit) -> Self:
        """See ``Mechanism.for_unit``: averages of many rows are shorter than single gradients."""
        if unit != "person" or self.gain is not None:
            return self
        return replace(self, gain=self.persons_gain)

    @property
    def asks(self) -> Asks:
        """The weights of a round's steps."""
        return Asks(
            noise=self.sigma,
            steps=self.steps,
            clip=self.clip,
            labels=self.label_space,
            axes=self.axes,
            gain=self.gain or 1,
        )

    def with_noise(self, level: float, asked: int) -> Self:
        """See ``Mechanism.with_noise``. A sum moves by SENSITIVITY, the unit of sigma."""
        return self.filled(sigma=more_noise(min(level, MAX_SIGMA)))

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
        """Noisy sums: int64 [n_queries, (d + 1) * outputs + 1].

        ``keys``: the weights' identities, charged for this stage already.
        """
        sums = voters.gradients(self.clip, self.label_space, self.gain or 1)
        return sums + entropy.discrete_gaussian(self._noise(), keys, stage, sums.shape[1])

    def outcome(self, results: Mapping[str, Value]) -> tuple[Outcome, int]:
        """Weights have a sum and no label; rows get labels from the model that is fitted."""
        return Outcome.ANSWERED, ABSTAINED

    def _noise(self) -> float:
        """Scale of the noise in units of the sums."""
        return self.number("sigma") * SENSITIVITY


@dataclass(frozen=True)
class _Margin(LinearSums):
    """With a margin for labels that have probabilities."""

    margin: float = 0.0

    margins = (0.1, 0.2, 0.4, 0.6, 0.8)  # in probability

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.margin < 1:
            raise InvalidInput("mechanism.margin", "at least 0 and below 1", self.margin)

    @property
    def asks(self) -> Asks:
        """The weights of a round's steps."""
        return replace(super().asks, margin=self.margin)


@dataclass(frozen=True)
class PrivateLinear(_Margin):
    """A linear classifier: softmax regression by noisy sums (``LinearSums`` has the guarantee).

    Args:
        kind: the mechanism's name.
        steps: noisy sums of a round, a count; fewer than ten are poor, but for a single one, which
            gives Gaussian classes and suits images at tiny budgets; more cost time alone.
        sigma: noise of one step in sensitivities (a noise multiplier); null: what the
            budget asks for.
        clip: length of the residuals (probabilities minus label, at most 1.41) above which they are
            shrunk, at inputs of a unit vector's length.
        axes: principal axes of the public rows' features that the classifier looks at, a count,
            each divided by the root of its deviation; null: the features as they are. The noise on
            every axis is the same, so that few records and a small budget want few of them; free.
        gain: factor of a record's gradient (of a person's, the average of its rows'), a count,
            before it is clipped to the length of a row's; null: 1, or 2 with privacy.unit: person.
        margin: a public row is labelled only if its best class leads the next by more, in
            probability; free.
    """

    kind: Literal["private_linear"] = "private_linear"
    steps: int = 30
    clip: float = 0.1
    max_clip = 1.5  # no residual is longer than sqrt(2)


@dataclass(frozen=True)
class PrivateLinearAttributes(_Margin):
    """One logistic regression an attribute, by sums over all of them at once (``LinearSums``).

    A record's residuals of all attributes are one vector, which is clipped as a whole: a step costs
    the same for any number of attributes.

    Args:
        kind: the mechanism's name.
        steps: noisy sums of a round, a count; fewer than ten are poor, more cost time alone.
        sigma: noise of one step in sensitivities (a noise multiplier); null: what the
            budget asks for.
        clip: root mean square of a record's residuals (probability minus label, each at most 1),
            over the attributes, above which they are shrunk, at inputs of a unit vector's length.
        axes: principal axes of the public rows' features that the classifiers look at, a count,
            each divided by the root of its deviation; null: the features as they are. The noise on
            every axis is the same, so that few records and a small budget want few of them; free.
        gain: factor of a record's gradient (of a person's, the average of its rows'), a count,
            before it is clipped to the length of a row's; null: 1, or 2 with privacy.unit: person.
        margin: a public row's attribute is labelled only if one answer leads the other by more, in
            probability; free.
    """

    kind: Literal["private_linear_attributes"] = "private_linear_attributes"
    steps: int = 30
    clip: float = 0.1
    label_space = "attributes"


@dataclass(frozen=True)
class PrivateLinearValue(LinearSums):
    """Linear regression by noisy moments (``LinearSums`` has the guarantee).

    The first sum is of value times features, values counted from the middle of the declared bounds.
    Later ones are of what the regression misses. Public rows tell the features' second moments.

    Args:
        kind: the mechanism's name.
        steps: noisy sums of a round, a count.
        sigma: noise of one step in sensitivities (a noise multiplier); null: what the
            budget asks for.
        clip: length of the residuals (prediction minus value) after the first step above which they
            are shrunk, in half ranges (high - low) / 2, at inputs of a unit vector's length.
        axes: principal axes of the public rows' features that the regression looks at, a count,
            each divided by the root of its deviation; null: the features as they are. The noise on
            every axis is the same, so that few records and a small budget want few of them; free.
        gain: factor of a record's gradient (of a person's, the average of its rows'), a count,
            before it is clipped to the length of a row's; null: 1.
    """

    kind: Literal["private_linear_value"] = "private_linear_value"
    clip: float = 0.25
    label_space = "value"
    persons_gain = 1  # clipping large values would bend the moments of the first sum
    clips = (0.1, 0.25, 0.5)
