"""Certificates of plans: the papers' parameters, composition, conversion, refusals."""

import math
import re
from decimal import Decimal

import pytest

from labelwall.teacher.accounting import accountant
from labelwall.teacher.accounting.conversion import epsilon_from_rdp, round_up
from labelwall.teacher.accounting.curves import ORDERS
from labelwall.teacher.accounting.plan import Plan, Release, Slot
from labelwall.teacher.mechanisms.votes import PrivateKnn
from labelwall.wall.errors import BudgetRefused, InvalidInput


def plan_of(*releases, epsilon=10.0, delta=1e-5):
    return Plan(epsilon, delta, (Slot({"kind": "test"}, releases),))


SMALL = plan_of(
    *PrivateKnn(k=3, threshold=2, sigma_screen=4.0, sigma_vote=3.0, sample_rate=0.3).releases(20, 5)
)


def test_the_smallest_certificate_counts():
    found = accountant.certificates(SMALL)
    assert list(found) == ["tight", "pld"]
    assert accountant.certified_epsilon(SMALL) == min(c.epsilon for c in found.values())
    assert found["tight"].order in ORDERS


def test_next_to_nothing_at_a_large_delta_costs_next_to_nothing():
    """Estimates below 0 leave no order out."""
    screen = {"max_votes": 30, "threshold": 21, "sigma": 85.0, "sample_rate": 0.05}
    votes = {"sigma": 100.0, "sample_rate": 0.05, "swap": False}
    releases = Release("screen", "screening", screen, 1), Release("aggregate", "argmax", votes, 1)
    pure = Release("batch", "pure", {"epsilon": 0.1}, 1, batch=True)
    for bought, most in ((releases, 1e-3), ((*releases, pure), 0.11)):
        plan = Plan(1.0, 1e-3, (Slot({}, bought),))
        found = accountant.certificates(plan)
        assert all(0 <= found[name].epsilon < most for name in ("tight", list(found)[-1]))
        assert accountant.odometer(plan, [1] * len(bought)) < most


@pytest.mark.parametrize(("sigma", "gamma"), [(3.0, 0.3), (8.0, 1.0), (12.0, 0.05)])
def test_the_orders_that_are_left_out_do_not_attain_the_minimum(sigma, gamma):
    for swap in (True, False):
        noise = {"sigma": sigma, "sample_rate": gamma}
        winner = Release("a", "argmax", noise | ({} if swap else {"swap": False}), 1)
        for count in (1, 30, 1000, 10**6):
            total = accountant.total_rdp([winner], [count], ORDERS)
            everywhere = epsilon_from_rdp(ORDERS, total, 1e-5)
            found = accountant.odometer(plan_of(winner), [count])
            assert found == pytest.approx(everywhere[0], rel=1e-12)


def test_an_unaffordable_plan_is_refused_in_one_line():
    cost = accountant.certified_epsilon(SMALL)
    accountant.require_affordable(Plan(cost, SMALL.delta, SMALL.slots))
    with pytest.raises(BudgetRefused) as refusal:
        accountant.require_affordable(Plan(cost * 0.999, SMALL.delta, SMALL.slots))
    assert "budget.epsilon" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_reading_reaches_the_certificate_at_the_caps_and_starts_at_zero():
    caps = [release.cap for release in SMALL.releases()]
    assert accountant.odometer(SMALL, [0, 0]) == 0.0
    assert 0 < accountant.odometer(SMALL, [1, 0]) < accountant.odometer(SMALL, caps)
    assert accountant.odometer(SMALL, caps) == accountant.certificates(SMALL)["tight"].epsilon
    for counts in ([1], [1, -1]):
        with pytest.raises(InvalidInput, match="counts"):
            accountant.odometer(SMALL, counts)


def test_caps_of_zero_cost_nothing_and_are_still_checked():
    assert accountant.certified_epsilon(plan_of(Release("r", "zcdp", {"rho": 1.0}, 0))) == 0.0
    with pytest.raises(InvalidInput):
        accountant.certificates(plan_of(Release("r", "zcdp", {"rho": float("nan")}, 0)))
    with pytest.raises(InvalidInput):
        accountant.certificates(plan_of(Release("r", "zcdp", {"rho": 1.0, "gamma": 0.1}, 0)))


@pytest.mark.parametrize(("rho", "delta"), [(0.0305, 1e-5), (0.5, 1e-6)])
def test_conversion_against_the_exact_delta_of_a_gaussian(rho, delta):
    """RDP alpha rho, of a Gaussian of sigma = 1 / sqrt(2 rho); its delta is by Balle-Wang 2018."""
    canonne, _ = epsilon_from_rdp(ORDERS, ORDERS * rho, delta)
    classic = (ORDERS * rho - math.log(delta) / (ORDERS - 1)).min()
    mu = math.sqrt(2 * rho)

    def upper(x):
        return math.erfc(x / math.sqrt(2)) / 2

    assert upper(canonne / mu - mu / 2) - math.exp(canonne) * upper(canonne / mu + mu / 2) <= delta
    assert (
        canonne < classic == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1 / delta)), rel=0.01)
    )
    if rho == 0.0305:  # the budget that privacy.md names for (1, 1e-5)
        assert canonne == pytest.approx(1.0, rel=0.005)


@pytest.mark.parametrize("value", [0.7575576, 0.758, 1e-9, 3.4066276, 12.0])
def test_printed_epsilons_are_never_below(value):
    for digits in (0, 2, 3):
        shown = round_up(value, digits)
        assert shown >= value
        assert Decimal(repr(shown)) - Decimal(repr(value)) < Decimal(1).scaleb(-digits)
        assert round_up(shown, digits) == shown
    assert round_up(math.inf) == math.inf


HISTOGRAM = {"sigma": 60.0, "sensitivity": 2.0, "sample_rate": 1.0}
VOTES = {"sigma": 9.0, "sample_rate": 0.2}
LISTS = {
    "pld": [Release("histogram", "gaussian", HISTOGRAM, 3)],
    "tight": [
        Release("screen", "screening", {"max_votes": 9, "threshold": 5, "sigma": 9.0} | VOTES, 40),
        Release("aggregate", "argmax", VOTES, 30),
    ],
    "pure_added": [
        Release("batch", "pure", {"epsilon": 0.5}, 1),
        Release("individual_budgets", "zcdp", {"rho": 0.01}, 1, prepaid=True),
    ],
    "pld of discrete laws": [
        Release("histogram", "gaussian", HISTOGRAM | {"sigma": 6.0, "sensitivity": 1.0}, 3)
    ],
}


@pytest.mark.parametrize("name", LISTS)
def test_the_page_names_every_release_and_ends_with_the_smallest_certificate(name):
    plan = Plan(9.0, 1e-5, (Slot({}, tuple(LISTS[name])),))
    text = "\n".join(accountant.explain(plan))
    for release in plan.releases():
        assert f"{release.cap} x {release.name}, curve {release.curve} (" in text
    smallest = f"{name.split()[0]} {accountant.certified_epsilon(plan):.6f}"
    assert f"the smallest of all certificates counts: {smallest}" in text
    for other, found in accountant.certificates(plan).items():
        assert f"{other} {found.epsilon:.6f}" in text


def test_the_sum_and_the_conversion_on_the_page_add_up():
    plan = Plan(9.0, 1e-5, (Slot({}, tuple(LISTS["tight"])),))
    text = "\n".join(accountant.explain(plan))
    order, terms, total = re.search(r"R\((\S+)\) = (.*) = (\S+)\n", text).groups()
    pairs = [term.split(" x ") for term in terms.split(" + ")]
    assert [cap for cap, _ in pairs] == ["40", "30"]
    assert sum(int(cap) * float(price) for cap, price in pairs) == pytest.approx(float(total), 1e-5)
    alpha = float(order)
    epsilon = float(total) + math.log(1 - 1 / alpha) - math.log(1e-5 * alpha) / (alpha - 1)
    assert epsilon == pytest.approx(accountant.certified_epsilon(plan), rel=1e-5)


def test_the_closed_form_on_the_page_adds_up():
    text = "\n".join(accountant.explain(Plan(9.0, 1e-5, (Slot({}, tuple(LISTS["pld"])),))))
    mu = float(re.search(r"against N\((\S+), 1\)", text).group(1))
    squared = float(re.search(r"\^2 = (\S+),", text).group(1))
    assert 3 * mu**2 == pytest.approx(squared, rel=1e-5)
    assert re.search(r"= 1e-05 at e = |= 9\.9999\d+e-06 at e = ", text)
