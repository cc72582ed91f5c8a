"""What `audit --explain` prints: the arithmetic on the page gives the certificate."""

import math
import re

import pytest

from labelwall.teacher.accounting.accountant import certificates, certified_epsilon
from labelwall.teacher.accounting.explain import explain
from labelwall.teacher.accounting.plan import Plan, Release, Slot

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
    text = "\n".join(explain(plan))
    for release in plan.releases():
        assert f"{release.cap} x {release.name}, curve {release.curve} (" in text
    assert (
        f"the smallest of all certificates counts: {name.split()[0]} {certified_epsilon(plan):.6f}"
        in text
    )
    for other, found in certificates(plan).items():
        assert f"{other} {found.epsilon:.6f}" in text


def test_the_sum_and_the_conversion_on_the_page_add_up():
    plan = Plan(9.0, 1e-5, (Slot({}, tuple(LISTS["tight"])),))
    text = "\n".join(explain(plan))
    order, terms, total = re.search(r"R\((\S+)\) = (.*) = (\S+)\n", text).groups()
    pairs = [term.split(" x ") for term in terms.split(" + ")]
    assert [cap for cap, _ in pairs] == ["40", "30"]
    assert sum(int(cap) * float(price) for cap, price in pairs) == pytest.approx(float(total), 1e-5)
    alpha = float(order)
    epsilon = float(total) + math.log(1 - 1 / alpha) - math.log(1e-5 * alpha) / (alpha - 1)
    assert epsilon == pytest.approx(certified_epsilon(plan), rel=1e-5)


def test_the_closed_form_on_the_page_adds_up():
    text = "\n".join(explain(Plan(9.0, 1e-5, (Slot({}, tuple(LISTS["pld"])),))))
    mu = float(re.search(r"against N\((\S+), 1\)", text).group(1))
    squared = float(re.search(r"\^2 = (\S+),", text).group(1))
    assert 3 * mu**2 == pytest.approx(squared, rel=1e-5)
    assert re.search(r"= 1e-05 at e = |= 9\.9999\d+e-06 at e = ", text)
