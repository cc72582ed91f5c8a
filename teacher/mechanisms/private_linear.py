"""A linear model of the extractor's features by noisy gradients over all records.

The label space decides a record's residuals: of classes (softmax regression), of attributes (one
logistic regression each) or of a value (linear regression).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from ...wall.matrices import MAX_DIMENSIONS, MAX_GAIN, SENSITIVITY
from ...wall.messages import ABSTAINED, Outcome, Value
from ...wall.unit import Unit
from ..accounting.plan import Release
from ..noise.scales import more_noise
from .base import Mechanism, QueryForm
from .fields import noise_scale, param

if TYPE_CHECKING:
    from ..noise.entropy import Entropy
    from .voters import Voters

SUM = "sum"
MAX_STEPS = 100
MIN_SIGMA, MAX_SIGMA = 0.001, 900.0  # times SENSITIVITY within the curves' range
MIN_CLIP = 0.01


def step_count(default: int, detail: str = "") -> Any:
    """The number of steps."""
    return param(default, f"noisy sums of a round{detail}", unit="a count", ge=1, le=MAX_STEPS)


def residual_clip(default: float, help: str, most: float = 1.0) -> Any:
    """The length above which residuals are shrunk."""
    return param(default, f"{help}, at inputs of a unit vector's length", ge=MIN_CLIP, le=most)


def label_margin(text: str) -> Any:
    """The lead that a label needs."""
    return param(0.0, f"{text}; free", unit="a probability", ge=0, lt=1)


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

    steps: int = step_count(2)
    sigma: float | None = noise_scale(
        "one step (a noise multiplier)", "sensitivities", ge=MIN_SIGMA, le=MAX_SIGMA
    )
    clip: float = residual_clip(1.0, "length of the residuals above which they are shrunk")
    axes: int | None = param(
        None,
        "principal axes of the public rows' features that the model looks at, each divided by the "
        "root of its deviation; null: the features as they are. The noise on every axis is the "
        "same, so that few records and a small budget want few of them; free",
        unit="a count",
        ge=1,
        le=MAX_DIMENSIONS,
    )
    gain: int | None = param(
        None,
        "factor of a record's gradient (of a person's, the average of its rows') before it is "
        "clipped to the length of a row's; null: 1, or 2 for classes and attributes with "
        "privacy.unit: person",
        unit="a count",
        ge=1,
        le=MAX_GAIN,
    )

    stages = (SUM,)
    by_unit = ("gain",)
    sharded = True
    persons = True
    persons_gain: ClassVar[int] = 2  # with more the count of the records becomes uncertain

    def for_unit(self, unit: Unit) -> Self:
        """See ``Mechanism.for_unit``: averages of many rows are shorter than single gradients."""
        if unit != "person" or self.gain is not None:
            return self
        return replace(self, gain=self.persons_gain)

    @property
    def noise(self) -> float:
        """The noise's scale in units of the sums."""
        return self.require("sigma") * SENSITIVITY

    @property
    def query_form(self) -> QueryForm:
        """The weights of a round's steps."""
        return QueryForm(
            noise=self.sigma,
            steps=self.steps,
            clip=self.clip,
            labels=self.label_space,
            axes=self.axes,
            gain=self.gain or 1,
            margin=vars(self).get("margin", 0.0),
        )

    def with_noise(self, level: float, asked: int) -> Self:
        """See ``Mechanism.with_noise``. A sum moves by SENSITIVITY, the unit of sigma."""
        return self.with_values(sigma=more_noise(min(level, MAX_SIGMA)))

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """The price of ``asked`` noisy sums; each of them is answered.

        Raises InvalidInput where sigma is not filled in (``with_noise``).
        """
        noisy = {
            "sigma": self.noise,
            "sensitivity": float(SENSITIVITY),
            "sampling_probability": 1.0,
        }
        return (Release(SUM, "gaussian", noisy, asked),)

    def draw(self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """Noisy sums: int64 [n_queries, (d + 1) * outputs + 1].

        ``keys``: the weights' identities, charged for this stage already.
        """
        sums = voters.gradients(self.clip, self.label_space, self.gain or 1)
        return sums + entropy.discrete_gaussian(self.noise, keys, stage, sums.shape[1])

    def outcome(self, results: Mapping[str, Value]) -> tuple[Outcome, int]:
        """Weights have a sum and no label; rows get labels from the model that is fitted."""
        return Outcome.ANSWERED, ABSTAINED


@dataclass(frozen=True)
class PrivateLinear(LinearSums):
    """A linear classifier: softmax regression by noisy sums (``LinearSums`` has the guarantee)."""

    kind: Literal["private_linear"] = "private_linear"
    steps: int = step_count(
        30,
        "; fewer than ten are poor, but for a single one, which gives Gaussian classes and suits "
        "images at tiny budgets; more cost time alone",
    )
    clip: float = residual_clip(
        0.1,
        "length of the residuals (probabilities minus label, at most 1.41) above which they are "
        "shrunk",
        1.5,  # no residual is longer than sqrt(2)
    )
    margin: float = label_margin(
        "a public row is labelled only if its best class leads the next by more"
    )


@dataclass(frozen=True)
class PrivateLinearAttributes(LinearSums):
    """One logistic regression an attribute, by sums over all of them at once (``LinearSums``).

    A record's residuals of all attributes are one vector, which is clipped as a whole: a step costs
    the same for any number of attributes.
    """

    kind: Literal["private_linear_attributes"] = "private_linear_attributes"
    steps: int = step_count(30, "; fewer than ten are poor, more cost time alone")
    clip: float = residual_clip(
        0.1,
        "root mean square of a record's residuals (probability minus label, each at most 1), over "
        "the attributes, above which they are shrunk",
    )
    margin: float = label_margin(
        "a public row's attribute is labelled only if one answer leads the other by more"
    )
    label_space = "attributes"


@dataclass(frozen=True)
class PrivateLinearValue(LinearSums):
    """Linear regression by noisy moments (``LinearSums`` has the guarantee).

    The first sum is of value times features, values counted from the middle of the declared bounds.
    Later ones are of what the regression misses. Public rows tell the features' second moments.
    """

    kind: Literal["private_linear_value"] = "private_linear_value"
    clip: float = residual_clip(
        0.25,
        "length of the residuals (prediction minus value) after the first step above which they "
        "are shrunk, in half ranges (high - low) / 2",
    )
    label_space = "value"
    persons_gain = 1  # clipping large values would bend the moments of the first sum
