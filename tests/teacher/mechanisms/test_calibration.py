"""Fields out of range are refused by name; noise from the budget, certified within 1% of it."""

import math
from typing import Any

import numpy as np
import pytest

from labelwall.teacher.accounting import accountant
from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.plan import Plan
from labelwall.teacher.mechanisms.attributes import GnmaxAttributes
from labelwall.teacher.mechanisms.base import Priced
from labelwall.teacher.mechanisms.batch import RadiusNeighbours
from labelwall.teacher.mechanisms.calibration import calibrate, estimate
from labelwall.teacher.mechanisms.fields import params
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.registry import MECHANISMS, space_of
from labelwall.teacher.mechanisms.sums import ReverseKnn
from labelwall.teacher.mechanisms.values import PrivateKnnMean
from labelwall.teacher.mechanisms.votes import PrivateKnn
from labelwall.wall.errors import InvalidInput

TOGETHER: list[tuple[str, str, dict[str, Any]]] = [
    ("private_knn", "threshold", {"k": 10, "threshold": 11}),
    ("confident_gnmax", "threshold", {"threshold": 251}),
    ("private_knn_mean", "threshold", {"k": 7, "threshold": 8}),
    ("private_knn_median", "window", {"cells": 8, "window": 8}),
    ("reverse_knn", "neighbours", {"centroids": 5, "neighbours": 6}),
    ("reverse_knn", "row_neighbours", {"centroids": 5, "row_neighbours": 6}),
    ("ind_knn", "sigma_count", {"rho": 0.5, "sigma_count": 0.99}),
    ("batch_knn", "conversion_share", {"conversion_share": 0.98, "records": None}),
    ("private_linear", "clip", {"clip": 1.6}),
    ("private_linear_attributes", "clip", {"clip": 1.1}),
    ("private_linear_value", "clip", {"clip": 1.1}),
]


@pytest.mark.parametrize("kind", MECHANISMS)
def test_a_field_out_of_its_range_is_refused(kind):
    """Every number has a least one; a scale of noise, an epsilon and a rho are positive."""
    for name, known in params(MECHANISMS[kind]).items():
        default = vars(MECHANISMS[kind]())[name]
        wrong: list[Any] = ["forest"]
        if not isinstance(default, bool | str):
            assert (known.ge is not None) + (known.gt is not None) == 1
            assert not known.calibrated or known.gt == 0 or (known.ge or 0) > 0
            least = [known.gt] if known.ge is None else [known.ge - 1, math.nextafter(known.ge, -1)]
            most = [known.lt] if known.le is None else [known.le + 1]
            wrong = [math.nan, math.inf, -math.inf, *least, *most]
        for value in wrong:
            if value is None or isinstance(default, bool):
                continue
            with pytest.raises(InvalidInput, match=rf"`mechanism\.{name}` must be "):
                MECHANISMS[kind](**{name: value})


@pytest.mark.parametrize(("kind", "name", "fields"), TOGETHER)
def test_fields_that_do_not_fit_together_are_refused(kind, name, fields):
    with pytest.raises(InvalidInput, match=rf"`mechanism\.{name}` must be "):
        MECHANISMS[kind](**fields)


def test_a_plan_has_one_label_space():
    for known in MECHANISMS.values():
        other = "private_knn" if known.label_space != "class" else "private_knn_mean"
        assert space_of([known(), known()], 3) == space_of([known()], 3)
        with pytest.raises(InvalidInput, match="`plan` must be of mechanisms that answer alike"):
            space_of([known(), MECHANISMS[other]()], 3)


DELTA = 1e-5
BUDGETS = (0.05, 0.5, 1.0, 4.0)
CONTESTS = {"private_knn", "naive_knn", "gnmax", "confident_gnmax"}  # their curves take seconds


def certified(entries, epsilon):
    """What the solved plan costs, as a share of the budget."""
    found = calibrate(entries, epsilon, DELTA)
    priced = [Priced(m, e.asked, e.answered) for m, e in zip(found, entries, strict=True)]
    plan = Plan(epsilon, DELTA, tuple(entry.slot() for entry in priced))
    return certified_epsilon(plan) / epsilon


def of_kind(kind, asked):
    mechanism = MECHANISMS[kind]()
    asked = 1 + asked // 100 if mechanism.once_a_round else asked
    return Priced(mechanism, asked, math.ceil(0.7 * asked))


@pytest.mark.parametrize("epsilon", BUDGETS)
@pytest.mark.parametrize(
    ("kind", "asked"),
    [(kind, asked) for kind in sorted(set(MECHANISMS) - CONTESTS) for asked in (1, 400)]
    + [pytest.param(kind, 0, marks=pytest.mark.slow) for kind in sorted(CONTESTS)],
)
def test_the_certificate_is_within_a_percent_of_the_budget(kind, epsilon, asked):
    """Contests have few queries at small budgets, where the curve takes minutes."""
    assert 0.99 <= certified([of_kind(kind, asked or round(25 * epsilon))], epsilon) <= 1


def test_a_price_that_falls_in_steps_is_followed_to_the_end():
    """So many certificates above the budget that the aim would fall below none of it."""
    assert 0.99 <= certified([Priced(ReverseKnn(neighbours=1), 1, 1)], 3.0) <= 1


def test_what_is_given_stays_and_the_rest_has_the_rest_of_the_budget():
    given = PrivateKnnMean(threshold=50, sigma_screen=40.0)
    (found,) = calibrate([Priced(given, 200, 100)], 1.0, DELTA)
    assert found.require("sigma_screen") == 40.0
    assert 0.99 <= certified([Priced(given, 200, 100)], 1.0) <= 1
    whole = RadiusNeighbours(epsilon=0.25)
    assert calibrate([Priced(whole, 3, 3)], 0.1, DELTA) == [
        whole
    ]  # too dear, which the plan refuses


def test_noise_of_two_releases_keeps_its_ratio():
    entry = Priced(PrivateKnnMean(threshold=50, screen_ratio=2.0), 200, 100)
    (found,) = calibrate([entry], 1.0, DELTA)
    ratio = found.require("sigma_screen") / found.require("sigma_mean")
    assert ratio == pytest.approx(2.0, rel=2e-3)


def test_shares_decide_how_mechanisms_split_the_budget():
    """zCDP adds up: rho of Gaussian noise is sensitivity^2 / (2 sigma^2) for each release."""
    entries = [
        Priced(ReverseKnn(neighbours=4), 2, 2, share=0.6),
        Priced(IndKnn(), 100, 100, share=0.3),
        Priced(GnmaxAttributes(tau=2), 50, 50, share=0.1),
    ]
    cells, individual, attributes = calibrate(entries, 1.0, DELTA)
    spent = np.array(
        [
            2 * 4 / (2 * cells.require("sigma") ** 2),
            individual.require("rho"),
            50 * 4 / (2 * attributes.require("sigma_vote") ** 2),
        ]
    )
    np.testing.assert_allclose(spent / spent.sum(), [0.6, 0.3, 0.1], atol=0.002)
    assert 0.99 <= certified(entries, 1.0) <= 1
    given = [entries[0], Priced(IndKnn(rho=0.01, sigma_count=50.0), 100, 100)]
    assert 0.99 <= certified(given, 1.0) <= 1
    pure = [Priced(RadiusNeighbours(), 1, 1, share) for share in (0.2, 0.8)]
    found = [m.require("epsilon") for m in calibrate(pure, 1.0, DELTA)]
    np.testing.assert_allclose(found, (0.2, 0.8), rtol=0.02)
    assert sum(found) <= 1


def test_no_noise_that_can_be_drawn_is_enough():
    """The most is returned, and the plan refused with what it costs."""
    (most,) = calibrate([Priced(ReverseKnn(), 10**6, 10**6)], 1e-3, DELTA)
    plan = Plan(1e-3, DELTA, (Priced(most, 10**6, 10**6).slot(),))
    with pytest.raises(accountant.BudgetRefused, match="must be at least"):
        accountant.require_affordable(plan)


@pytest.mark.parametrize("gamma", [1.0, 0.2])
def test_the_estimate_is_close_where_votes_are_drawn(gamma):
    mechanism = PrivateKnn(k=50, threshold=30, sigma_screen=12.0, sigma_vote=5.0, sample_rate=gamma)
    plan = Plan(1.0, DELTA, (Priced(mechanism, 10, 8).slot(),))
    assert estimate(plan) == pytest.approx(certified_epsilon(plan), rel=0.03)
