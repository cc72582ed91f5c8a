"""Epsilons that papers print, with their parameters.

`plan` shows one beside its own where a plan has the same parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...teacher.accounting.plan import Plan, Release, Slot
from ...teacher.mechanisms.attributes import GnmaxAttributes, PrivateKnnAttributes
from ...teacher.mechanisms.private_knn import PrivateKnn
from ...teacher.mechanisms.registry import AnyMechanism


@dataclass(frozen=True)
class PublishedEpsilon:
    """One row of a paper's table.

    ``asked``, ``answered``: queries as the paper counts them; ``epsilon``: as printed, at
    ``delta``.
    """

    table: str
    name: str
    mechanism: AnyMechanism
    asked: int
    answered: int
    delta: float
    epsilon: float

    def plan(self) -> Plan:
        """The row as a plan, whose budget is the printed epsilon."""
        slot = Slot(self.mechanism.fields(), self.mechanism.releases(self.asked, self.answered))
        return Plan(self.epsilon, self.delta, (slot,))


def _gnmax(
    name: str, teachers: int, sigma: float, queries: int, delta: float, epsilon: float
) -> PublishedEpsilon:
    mechanism = GnmaxAttributes(tau=TAU, teachers=teachers, sigma_vote=sigma)
    return PublishedEpsilon("CVPR20 Table 3", name, mechanism, queries, queries, delta, epsilon)


def _ours(
    name: str, k: int, sigma: float, gamma: float, queries: int, delta: float, epsilon: float
) -> PublishedEpsilon:
    mechanism = PrivateKnnAttributes(tau=TAU, k=k, sigma_vote=sigma, sampling_probability=gamma)
    return PublishedEpsilon("CVPR20 Table 3", name, mechanism, queries, queries, delta, epsilon)


def _knn(
    name: str, votes: PrivateKnn, asked: int, answered: int, delta: float, epsilon: float
) -> PublishedEpsilon:
    return PublishedEpsilon("CVPR20 Table 1", name, votes, asked, answered, delta, epsilon)


TAU = 10
TOLERANCE = 0.01  # of the noise
TABLE_1 = (
    _knn(
        "MNIST",
        PrivateKnn(k=300, threshold=180, sigma_screen=75, sigma_vote=25),
        1000,
        735,
        1e-5,
        0.47,
    ),
    _knn(
        "SVHN",
        PrivateKnn(
            k=800, threshold=480, sigma_screen=200, sigma_vote=60, sampling_probability=0.03
        ),
        6000,
        2939,
        1e-6,
        0.49,
    ),
    _knn(
        "CIFAR-10",
        PrivateKnn(k=300, threshold=210, sigma_screen=85, sigma_vote=20, sampling_probability=0.2),
        18000,
        3877,
        1e-5,
        2.92,
    ),
)
TABLE_3 = (
    _gnmax("CelebA, T = 300", 300, 150.0, 600, 1e-6, 7.72),
    _gnmax("CelebA, T = 800", 800, 300.0, 500, 1e-6, 3.31),
    _ours("CelebA, gamma = 0.05", 800, 50.0, 0.05, 800, 1e-6, 1.24),
    _ours("CelebA, gamma = 0.10", 800, 100.0, 0.10, 800, 1e-6, 1.20),
    _gnmax("Market1501, sigma = 100", 300, 100.0, 800, 1e-5, 13.41),
    _gnmax("Market1501, sigma = 250", 300, 250.0, 80, 1e-5, 1.41),
    _ours("Market1501, gamma = 0.05", 300, 100.0, 0.05, 1200, 1e-5, 0.67),
    _ours("Market1501, gamma = 0.10", 300, 100.0, 0.10, 1200, 1e-5, 1.38),
)


def published_for(plan: Plan) -> PublishedEpsilon | None:
    """The row with the releases and delta of ``plan``, noise within 1%; None if there is none."""
    return next((row for row in (*TABLE_1, *TABLE_3) if _same(row.plan(), plan)), None)


def _same(known: Plan, plan: Plan) -> bool:
    """Whether both plans have one mechanism kind, the same priced releases and the same delta.

    Parameters without a price, such as some thresholds, may differ, and noise by 1%: a budget
    decides it to four digits.
    """
    kinds = [slot.mechanism["kind"] for entry in (known, plan) for slot in entry.slots]
    releases, others = known.releases(), plan.releases()
    return (
        known.delta == plan.delta
        and len(set(kinds)) == 1
        and len(releases) == len(others)
        and all(_close(*pair) for pair in zip(releases, others, strict=True))
    )


def _close(known: Release, release: Release) -> bool:
    noise, other = known.parameters["sigma"], release.parameters["sigma"]
    same = replace(release, parameters={**release.parameters, "sigma": noise})
    return known == same and math.isclose(noise, other, rel_tol=TOLERANCE)
