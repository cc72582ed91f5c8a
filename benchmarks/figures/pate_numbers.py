"""The papers' epsilons of PATE, recomputed as far as their parameters are printed.

Run it without arguments. Data-dependent epsilons are left out: the papers' votes are not available.
"""

import math
from dataclasses import dataclass

from labelwall.benchmarks.figures.figure_numbers import classic_epsilon
from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.conversion import round_up
from labelwall.teacher.accounting.curves import ORDERS, argmax_rdp, laplace_rdp
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.mechanisms.attributes import GnmaxAttributes, PrivateKnnAttributes
from labelwall.teacher.mechanisms.registry import AnyMechanism

# Papernot et al. 2017; 2018, Table 1.
SCALE = 20.0
VOTE = 40.0
ANSWERED = 286
DELTA = 1e-5


@dataclass(frozen=True)
class AttributeVotes:
    """A GNMAX row of CVPR20's Table 3: noise scale, queries, delta, the epsilon printed."""

    name: str
    sigma: float
    queries: int
    delta: float
    printed: float


@dataclass(frozen=True)
class PublishedEpsilon:
    """A row of CVPR20's Table 3: GNMAX where ``gamma``, the sampling probability, is 1."""

    name: str
    voters: int
    sigma: float
    gamma: float
    queries: int
    delta: float
    epsilon: float

    def plan(self) -> Plan:
        """The row as a plan, whose budget is the printed epsilon."""
        mechanism: AnyMechanism
        if self.gamma == 1:
            mechanism = GnmaxAttributes(tau=TAU, teachers=self.voters, sigma_vote=self.sigma)
        else:
            mechanism = PrivateKnnAttributes(
                tau=TAU, k=self.voters, sigma_vote=self.sigma, sample_rate=self.gamma
            )
        releases = mechanism.releases(self.queries, self.queries)
        return Plan(self.epsilon, self.delta, (Slot(mechanism.fields(), releases),))


TAU = 10
PUBLISHED = (
    PublishedEpsilon("CelebA, T = 300", 300, 150.0, 1, 600, 1e-6, 7.72),
    PublishedEpsilon("CelebA, T = 800", 800, 300.0, 1, 500, 1e-6, 3.31),
    PublishedEpsilon("CelebA, gamma = 0.05", 800, 50.0, 0.05, 800, 1e-6, 1.24),
    PublishedEpsilon("CelebA, gamma = 0.10", 800, 100.0, 0.10, 800, 1e-6, 1.20),
    PublishedEpsilon("Market1501, sigma = 100", 300, 100.0, 1, 800, 1e-5, 13.41),
    PublishedEpsilon("Market1501, sigma = 250", 300, 250.0, 1, 80, 1e-5, 1.41),
    PublishedEpsilon("Market1501, gamma = 0.05", 300, 100.0, 0.05, 1200, 1e-5, 0.67),
    PublishedEpsilon("Market1501, gamma = 0.10", 300, 100.0, 0.10, 1200, 1e-5, 1.38),
)
TABLE_3 = tuple(
    AttributeVotes(row.name, row.sigma, row.queries, row.delta, row.epsilon)
    for row in PUBLISHED
    if row.gamma == 1
)


def classic(rho: float, delta: float) -> float:
    """The minimum over all real orders of order rho + log(1/delta) / (order - 1)."""
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def implied(row: AttributeVotes) -> float:
    """x for which RDP order x / sigma^2 a query gives the printed epsilon: ``classic`` inverted."""
    log = math.log(1 / row.delta)
    return (math.sqrt(log + row.printed) - math.sqrt(log)) ** 2 * row.sigma**2 / row.queries


def table_3() -> None:
    """Theorem 13 (order tau / sigma^2 a query) beside what is printed."""
    print(f"CVPR20 Table 3, GNMAX, tau = {TAU:g}")
    print("| row | printed | Theorem 13 | implied x of order x / sigma^2 |\n|---|---|---|---|")
    for row in TABLE_3:
        theorem = classic(TAU * row.queries / row.sigma**2, row.delta)
        print(f"| {row.name} | {row.printed} | {theorem:.2f} | {implied(row):.2f} |")


def certified() -> None:
    """All of Table 3 by the certificates of labelwall's mechanisms with its parameters."""
    print("\nCVPR20 Table 3, certified here")
    print("| row | queries | delta | printed | certified |\n|---|---|---|---|---|")
    for row in PUBLISHED:
        method = "GNMAX" if row.gamma == 1 else "Private-kNN"
        ours = round_up(certified_epsilon(row.plan()))
        print(f"| {method}, {row.name} | {row.queries} | {row.delta:g} | {row.epsilon} | {ours} |")


def independent() -> dict[str, float]:
    """Data-independent epsilons of the papers' MNIST parameters, classic conversion."""
    label = argmax_rdp(ORDERS, sigma=VOTE, sample_rate=1.0)
    curves = {
        f"LNMAX, {n} labels": n * laplace_rdp(ORDERS, scale=SCALE, sensitivity=2.0)
        for n in (100, 1000)
    }
    curves[f"GNMAX, {ANSWERED} labels, Gaussian bound"] = ANSWERED * ORDERS / VOTE**2
    curves[f"GNMAX, {ANSWERED} labels, argmax"] = ANSWERED * label
    return {name: classic_epsilon(rdp, DELTA) for name, rdp in curves.items()}


def main() -> None:
    table_3()
    certified()
    print("\nMNIST's parameters, data-independent, classic conversion")
    for name, epsilon in independent().items():
        print(f"{name}: {epsilon:.3f}")


if __name__ == "__main__":
    main()
