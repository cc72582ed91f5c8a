"""What a guarantee means for a person: beside closed formulas and laws that are written out."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

from labelwall.teacher.accounting.curves import ORDERS
from labelwall.teacher.accounting.plan import Plan, Release, Slot
from labelwall.teacher.accounting.pld import pld_deltas
from labelwall.teacher.accounting.risk import PRIORS, by_deltas, by_renyi, risks, table
from tests.teacher.accounting.test_pld import exact_law, noisy, noisy_of, product

RATES = (0.001, 0.01, 0.3)
EPSILONS = np.linspace(0, 7, 5000)


def plan(*releases, delta=1e-5, unit="row"):
    return Plan(1e9, delta, (Slot({}, releases),), unit)


def pure(epsilon, cap=1):
    return Release("b", "pure", {"epsilon": epsilon}, cap)


def most_found(base, ratios, rate):
    """Neyman and Pearson: outcomes by falling likelihood ratio, the last one by a coin."""
    order = np.argsort(-ratios)
    false = np.append(0.0, np.cumsum(base[order]))
    true = np.append(0.0, np.cumsum((base * ratios)[order]))
    return float(np.interp(rate, false, true))


@pytest.mark.parametrize(("sigma", "cap"), [(400.0, 1), (90.0, 9)])
def test_a_gaussian_has_its_closed_trade_off(sigma, cap):
    mu = math.sqrt(cap) / sigma
    for rate, risk in zip(RATES, risks(plan(noisy(sigma, 1.0, 1.0, cap)), RATES), strict=True):
        exact = norm.cdf(norm.ppf(rate) + mu)
        assert exact <= risk.true_positive_rate <= 1.01 * exact + 1e-5
        assert risk.by in ("gaussian", "pld")


def test_a_sum_of_gaussians_is_found_by_the_distribution_of_losses_too():
    """Lines at so many epsilons lose nothing that a table shows."""
    known = pld_deltas([noisy(40.0, 2.0)], EPSILONS)
    for rate in RATES:
        exact = norm.cdf(norm.ppf(rate) + 0.05)
        assert exact <= by_deltas(rate, EPSILONS, known) <= 1.003 * exact


@pytest.mark.parametrize(
    "parts",
    [
        [((1,), 1.3, 1.0, 1)],
        [((1,), 1.3, 0.2, 2)],
        [((1, 1), 2.0, 0.05, 2)],
        [((1,), 2.0, 0.4, 1), ((1,), 1.5, 1.0, 1)],
    ],
)
def test_the_best_attack_on_a_written_out_law_finds_no_more_and_hardly_less(parts):
    laws = [exact_law(shift, sigma, gamma) for shift, sigma, gamma, n in parts for _ in range(n)]
    for rate, risk in zip(RATES, risks(plan(*noisy_of(parts)), RATES), strict=True):
        exact = most_found(*product(*laws), rate)
        assert exact <= risk.true_positive_rate <= 1.02 * exact + 1e-5
        assert risk.by == "pld"


@pytest.mark.parametrize(("epsilon", "copies"), [(1.0, 1), (0.3, 4)])
def test_randomised_responses_are_found_as_often_as_their_law_says(epsilon, copies):
    likely = 1 / (1 + math.exp(-epsilon))
    law = np.array([1 - likely, likely]), np.exp([epsilon, -epsilon])
    for rate, risk in zip(RATES, risks(plan(pure(epsilon, copies)), RATES), strict=True):
        exact = most_found(*product(*[law] * copies), rate)
        assert exact <= risk.true_positive_rate <= 1.002 * exact + 1e-5


def test_both_directions_count_of_a_sampled_release():
    """With so many false alarms the reverse direction alone bounds what is found."""
    epsilons = EPSILONS
    deltas = pld_deltas([noisy(1.5, 1.0, 0.3, 2)], epsilons)
    law = exact_law((1,), 1.5, 0.3)
    exact = most_found(*product(law, law), 0.9)
    assert exact <= by_deltas(0.9, epsilons, deltas) <= 1.001 * exact
    one = np.vstack([deltas[0], np.ones(5000)])
    assert by_deltas(0.9, epsilons, one) > 1.004 * exact


def test_renyi_divergences_bound_every_attack_on_a_small_law():
    rng = np.random.default_rng(3)
    for _ in range(20):
        p, q = rng.dirichlet(np.ones(5), 2)
        rdp = [
            max(np.log((a**o * b ** (1 - o)).sum()) / (o - 1) for a, b in ((p, q), (q, p)))
            for o in ORDERS[:40]
        ]
        for said in itertools.product([False, True], repeat=5):
            said = np.array(said)
            if 0 < said.sum() < 5:
                bound = by_renyi(float(q[said].sum()), ORDERS[:40], np.array(rdp))
                assert p[said].sum() <= bound + 1e-9


def test_renyi_divergences_are_next_to_the_gaussian_that_has_them():
    for rate in RATES[:2]:
        exact = norm.cdf(norm.ppf(rate) + 0.5)
        assert exact <= by_renyi(rate, ORDERS, ORDERS * 0.5**2 / 2) <= 1.35 * exact


@pytest.mark.parametrize(
    ("releases", "delta", "by"),
    [
        ((Release("r", "zcdp", {"rho": 0.03}, 1),), 1e-5, "tight"),
        ((Release("r", "zcdp", {"rho": 0.03}, 1), pure(2.0)), 1e-5, "tight"),
        ((pure(0.5),), 1e-12, "pair"),
    ],
)
def test_it_says_what_a_bound_follows_from(releases, delta, by):
    found = risks(plan(*releases, delta=delta))
    assert {risk.by for risk in found} == {by}


def test_a_guess_rises_as_bayes_says_and_outcomes_that_say_more_are_rare():
    """Section 23: they have less than the false positive rate, however they are found."""
    law = exact_law((1,), 1.3, 0.4)
    base, ratios = product(law, law)
    for risk in risks(plan(noisy(1.3, 1.0, 0.4, 2))):
        rate = risk.false_positive_rate
        for prior, guess in zip(PRIORS, risk.guesses, strict=True):
            after = prior * ratios / (prior * ratios + 1 - prior)
            assert base[after > guess].sum() < rate
            true = most_found(base, ratios, rate)
            reached = prior * true / (prior * true + (1 - prior) * rate)
            assert reached <= guess <= 1.01 * reached


def test_nothing_is_found_where_nothing_is_released_and_all_where_nothing_is_hidden():
    assert [r.true_positive_rate for r in risks(plan(pure(1.0, 0)))] == [0.00101, 0.01001]
    everything = risks(plan(noisy(0.02, 1.0)))
    assert [r.true_positive_rate for r in everything] == [1.0, 1.0]
    assert everything[0].guesses == [0.99901, 0.99109, 0.90992]


def test_the_table_says_it_in_words():
    lines = table(risks(plan(pure(1.0))), "person")
    assert "whether one person's rows were used" in lines[0]
    assert [line.split() for line in lines[2:4]] == [
        ["0.1%", "0.272%", "73.2%", "23.3%", "2.674%"],
        ["1.0%", "2.720%", "73.2%", "23.3%", "2.674%"],
    ]
    assert lines[4].startswith("  by ")
