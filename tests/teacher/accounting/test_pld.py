"""The privacy loss distribution: the lemma of its pairs, and soundness by exact laws."""

import functools
import itertools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import common
from dp_accounting.pld import privacy_loss_distribution as library
from scipy.optimize import brentq

from labelwall.teacher.accounting.accountant import certificates
from labelwall.teacher.accounting.conversion import gaussian_delta, gaussian_epsilon
from labelwall.teacher.accounting.plan import Plan, Release, Slot
from labelwall.teacher.accounting.pld import LOG_ERROR, pld_epsilon, rounding_variance
from tests.teacher.laws import gaussian, hockey_stick


def noisy(sigma, sensitivity, gamma=1.0, cap=1):
    fields = {"sigma": sigma, "sensitivity": sensitivity, "sample_rate": gamma}
    return Release("counts", "gaussian", fields, cap)


@pytest.mark.parametrize("entries", [1, 10**6])
@pytest.mark.parametrize("mean", [0, 3])
def test_a_rounded_continuous_gaussian_is_the_discrete_one(entries, mean):
    """The lemma, with 40 digits, at the smallest sigma and at a larger one."""
    with mpmath.workdps(40):
        t2 = mpmath.mpf(rounding_variance(entries))
        # The trapezoid rule with this step errs by far less than 1e-40: the integrand is analytic.
        totals = [
            mpmath.fsum(mpmath.exp(-((k - mpmath.mpf(i) / STEPS) ** 2) / (2 * t2)) for k in NEAR)
            for i in range(STEPS)
        ]
        for sigma2 in (2 * t2, mpmath.mpf(30)):
            weights = [mpmath.exp(-(mpmath.mpf(z) ** 2) / (2 * sigma2)) for z in range(-90, 91)]
            normaliser = mpmath.fsum(weights)
            for z in (0, 1, 5):
                exact = mpmath.exp(-(mpmath.mpf(z - mean) ** 2) / (2 * sigma2)) / normaliser
                law = rounded_law(z, mean, sigma2 - t2, t2, totals)
                assert abs(mpmath.log(law / exact)) * entries <= LOG_ERROR


STEPS, NEAR = 12, range(-30, 32)


def rounded_law(z, mean, s2, t2, totals):
    """P(Z = z), Z the discrete Gaussian of variance t2 about X, X continuous, N(mean, s2)."""
    terms = []
    for i in range(-60 * STEPS, 61 * STEPS):
        x = mpmath.mpf(i) / STEPS
        here = mpmath.exp(-((z - x) ** 2) / (2 * t2) - (x - mean) ** 2 / (2 * s2))
        terms.append(here / totals[i % STEPS])
    return mpmath.fsum(terms) / STEPS / mpmath.sqrt(2 * mpmath.pi * s2)


def exact_epsilon(delta, *releases):
    """Smallest epsilon of releases (shift, sigma, gamma, times), by their laws.

    Each is N_Z(0, sigma^2)^m against the sampled shift. Losses are binned nowhere: every atom is
    kept.
    """
    laws = [exact_law(*release) for *release, times in releases for _ in range(times)]
    base, ratios = product(*laws)
    return brentq(lambda epsilon: hockey_stick(base * ratios, base, epsilon) - delta, 0.0, 99.0)


def product(*laws):
    """(chances without the record, likelihood ratios) of independent releases."""
    base, ratios = np.ones(1), np.ones(1)
    for q, ratio in laws:
        base, ratios = np.outer(base, q).ravel(), np.outer(ratios, ratio).ravel()
    return base, ratios


def exact_law(shift, sigma, gamma):
    """(chances without the record, likelihood ratios) of w = <shift, z>, which is sufficient."""
    single, law = gaussian(sigma, 14 * math.ceil(sigma)), np.ones(1)
    for step in shift:
        stretched = np.zeros(step * (len(single) - 1) + 1)
        stretched[::step] = single
        law = np.convolve(law, stretched)
    w, square = np.arange(len(law)) - len(law) // 2, sum(step**2 for step in shift)
    w, law = w[law > 0], law[law > 0]
    return law, (1 - gamma) + gamma * np.exp((2 * w - square) / (2 * sigma**2))


SHAPES = (2,), (1, 1, 1, 1)  # of one norm, which no single discrete pair dominates
PRICED = [  # by how much at most, and the releases
    *((1.06, [(shift, 5.0, gamma, n)]) for shift in SHAPES for gamma in (1.0, 0.3) for n in (1, 2)),
    *(  # little noise, which its own law prices
        (1.01, [((1,) * m, 1.3, gamma, n)])
        for m in (1, 2, 3)
        for gamma, n in ((1.0, 1), (0.3, 2), (0.1, 1))
    ),
    # The first release has a discrete pair, the second, of another shape, a continuous one.
    *((1.03, [((1,), 2.0, gamma, 1), ((2,), 9.0, gamma, 2)]) for gamma in (1.0, 0.4)),
]


def noisy_of(releases):
    """These releases, of which the price knows the norm of the shift alone."""
    return [noisy(sigma, math.hypot(*shift), gamma, n) for shift, sigma, gamma, n in releases]


@pytest.mark.parametrize(("most", "releases"), PRICED)
def test_a_list_is_priced_by_its_exact_law_or_little_above(most, releases):
    exact = exact_epsilon(1e-4, *releases)
    assert exact <= pld_epsilon(noisy_of(releases), 1e-4) <= most * exact


@pytest.mark.parametrize("curve", ["screening", "argmax"])
def test_what_is_computed_from_noisy_votes_costs_what_they_cost(curve):
    for sigma in (9.0, 90.0):
        fields = {"sigma": sigma, "sample_rate": 0.2}
        fields |= {"max_votes": 9, "threshold": 5} if curve == "screening" else {}
        votes = noisy(sigma, 1.0 if curve == "screening" else math.sqrt(2), 0.2, 4)
        bit = Release("r", curve, fields, 4)
        assert pld_epsilon([bit], 1e-5) == pld_epsilon([votes], 1e-5)


@pytest.mark.parametrize("mu", [1e-7, 1e-3, 0.03, 1.0, 30.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_the_closed_form_is_above_the_exact_value_and_next_to_it(mu, delta):
    def exact(epsilon):
        with mpmath.workdps(60):
            e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
            tail = [mpmath.ncdf(side * m / 2 - e / m) for side in (1, -1)]
            return tail[0] - mpmath.exp(e) * tail[1]

    found = gaussian_epsilon(mu, delta)
    assert exact(found) <= delta
    if found > 0 and mu >= 1e-5:
        assert exact(found * (1 - 1e-5)) > delta
        assert gaussian_delta(mu, found) == pytest.approx(float(exact(found)), rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 0.999, 1.0, 1.001])
@pytest.mark.parametrize("gamma", [1.0, 0.3])
def test_another_computation_agrees(epsilon, gamma):
    """Pure releases beside Gaussian ones, by dp_accounting: also at 1, no sampling probability."""
    releases = [noisy(40.0, 1.0, gamma, 100), noisy(90.0, math.sqrt(8), 1.0, 7)]
    parts = []
    for release in releases:
        p, every = release.parameters, {"value_discretization_interval": 1e-4}
        every |= {"sensitivity": p["sensitivity"], "sampling_prob": p["sample_rate"]}
        parts.append(library.from_gaussian_mechanism(p["sigma"], **every).self_compose(release.cap))
    if epsilon:
        releases.append(Release("b", "pure", {"epsilon": epsilon}, 1))
        pure = common.DifferentialPrivacyParameters(epsilon, 0)
        parts.append(library.from_privacy_parameters(pure, value_discretization_interval=1e-4))
    whole = functools.reduce(lambda one, other: one.compose(other), parts)
    found = whole.get_epsilon_for_delta(1e-5)
    assert found == pytest.approx(pld_epsilon(releases, 1e-5), rel=0.01)


@pytest.mark.parametrize(
    ("releases", "delta"),
    [
        ([Release("r", "zcdp", {"rho": 0.1}, 1)], 1e-5),
        ([noisy(9.0, 1.0), Release("r", "zcdp", {"rho": 0.1}, 1)], 1e-5),
        ([noisy(1.6, 2.0)], 1e-5),  # half of the variance would be lost
        ([noisy(9.0, 1.0, 0.5)], 1e-9),  # rounding would not be small
        ([noisy(9.0, 1.0, 0.5, 10**6)], 1e-5),
        ([noisy(9.0, 300.0, 0.5)], 1e-5),
        ([Release("r", "pure", {"epsilon": 0.1}, 1)], 1e-9),
        ([], 1e-5),
    ],
)
def test_nothing_is_certified_where_nothing_is_proved(releases, delta):
    assert pld_epsilon(releases, delta) is None


def exact_delta_of_a_mixture(epsilon, pure, copies, sigma):
    """Of ``copies`` randomised responses and N_Z(0, sigma^2) against its shift by 1."""
    noise = gaussian(sigma, 60)
    atoms = [(np.append(0, noise), np.append(noise, 0))]
    likely = 1 / (1 + math.exp(-pure))
    atoms += [(np.array([likely, 1 - likely]), np.array([1 - likely, likely]))] * copies
    p, q = (
        np.array([math.prod(entries) for entries in itertools.product(*side)])
        for side in zip(*atoms, strict=True)
    )
    return hockey_stick(p, q, epsilon)


@pytest.mark.parametrize(
    ("pure", "copies", "sigma", "delta"),
    [(0.3, 3, 4.0, 1e-5), (1.0, 1, 8.0, 1e-3), (0.05, 4, 2.0, 1e-6)],
)
def test_a_mixed_list_is_sound_by_every_certificate_and_adds_up_its_pure_part(
    pure, copies, sigma, delta
):
    batches = Release("b", "pure", {"epsilon": pure}, copies, batch=True)
    known = certificates(Plan(9.0, delta, (Slot({}, (batches, noisy(sigma, 1.0))),)))
    alone = certificates(Plan(9.0, delta, (Slot({}, (noisy(sigma, 1.0),)),)))
    assert known["pure_added"].epsilon == pytest.approx(pure * copies + alone["tight"].epsilon)
    assert "pure_added" not in alone
    assert known["pld"].epsilon < known["pure_added"].epsilon
    for certificate in known.values():
        assert exact_delta_of_a_mixture(certificate.epsilon, pure, copies, sigma) <= delta
    assert exact_delta_of_a_mixture(0.95 * known["pld"].epsilon, pure, copies, sigma) > delta


def test_noise_that_hides_nothing_has_an_infinite_epsilon():
    """Every loss of one of two releases, and of a single one, counts as infinite."""
    assert pld_epsilon([noisy(0.02, 1.0)], 1e-5) == math.inf
    assert pld_epsilon([noisy(0.5, 1.0, cap=4), noisy(0.02, 1.0)], 1e-5) == math.inf
