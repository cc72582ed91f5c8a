"""The contest certificate: known values, and all contests and tie orders counted by hand."""

import itertools
import math

import numpy as np
import pytest

from labelwall.teacher.accounting.contest import argmax_log_excess, reach
from labelwall.teacher.accounting.curves import argmax_rdp, gaussian_rdp

ARGMAX = {"sigma": 25.0, "sample_rate": 0.15}


def test_argmax_reproduces_the_reference_values():
    reference = [4.6132e-05, 9.2309e-05, 1.8481e-04, 3.7043e-04, 7.4445e-04, 1.5067e-03]
    np.testing.assert_allclose(
        argmax_rdp(np.array([2.0, 4, 8, 16, 32, 64]), **ARGMAX), reference, rtol=1e-4
    )


def outcome_laws(sigma, shift, reach_of_noise, differences):
    """P(a wins), P(b wins), P(other wins) by counting points of a box: float64 [6, n, n, 3].

    Of the six tie orders and all contests (x, y) from ``differences`` squared.
    """
    z = np.arange(-reach_of_noise, reach_of_noise + 1)
    mass = np.exp(-(z**2) / (2.0 * sigma**2))
    joint = np.outer(mass, mass) / mass.sum() ** 2
    laws = []
    # Rank of a, b, other among equals: the lowest wins.
    for ranks in itertools.permutations((0, 1, 2)):
        table = np.empty((len(differences), len(differences), 3))
        for (i, x), (j, y) in itertools.product(enumerate(differences), repeat=2):
            scores = np.stack(
                np.broadcast_arrays(
                    3 * (x + shift[0] + z[:, None]), 3 * (y + shift[1] + z[None, :]), 0 * z[:, None]
                )
            )
            winner = (scores - np.array(ranks)[:, None, None]).argmax(axis=0)
            table[i, j] = np.bincount(winner.ravel(), joint.ravel(), minlength=3)
        laws.append(table)
    return np.array(laws)


def worst_divergence(base, other, gamma, order):
    """Largest D_alpha over contests, both directions, by its definition on laws [..., 3]."""
    mixed = (1 - gamma) * base + gamma * other
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = [
            order * np.log(p) + (1 - order) * np.log(q) for p, q in ((mixed, base), (base, mixed))
        ]
    moments = [np.logaddexp.reduce(np.where(base > 0, log, -np.inf), axis=-1) for log in logs]
    return max(float(m.max()) for m in moments) / (order - 1)


@pytest.mark.parametrize(("sigma", "gamma"), [(0.8, 0.3), (1.2, 0.05), (1.2, 1.0)])
def test_argmax_is_the_worst_of_all_contests_with_all_tie_orders(sigma, gamma):
    orders = np.array([1.1, 1.5, 2.0, 3.0, 6.0])
    differences = range(-9, 10)
    base = outcome_laws(sigma, (0, 0), 12, differences)
    swapped, added = (outcome_laws(sigma, shift, 12, differences) for shift in ((1, -1), (1, 0)))
    for order in orders.tolist():
        exact = max(worst_divergence(base, law, gamma, order) for law in (swapped, added))
        claim = np.logaddexp(0.0, argmax_log_excess(order, sigma, gamma)) / (order - 1)
        assert exact <= claim * (1 + 1e-7)  # never below
        assert claim <= exact * (1 + 1e-4)  # and not above what is attained
        noise, one = {"sigma": sigma, "sample_rate": gamma}, np.array([order])
        alone = argmax_rdp(one, **noise, swap=False)[0]
        gaussian = gaussian_rdp(one, **noise, sensitivity=1.0)[0]
        without_swap = worst_divergence(base, added, gamma, order)
        assert without_swap <= alone * (1 + 1e-7)
        assert alone <= min(without_swap * (1 + 1e-4), gaussian)


@pytest.mark.parametrize(("sigma", "gamma"), [(0.01, 0.1), (0.5, 1.0), (0.5, 0.1), (1000.0, 0.2)])
def test_any_sigma_is_answered_and_never_above_the_gaussian_bound(sigma, gamma):
    orders = np.array([1.5, 2.0, 16.0, 512.0])
    noise, curves = {"sigma": sigma, "sample_rate": gamma}, []
    for swap in (False, True):
        curves.append(argmax_rdp(orders, **noise, swap=swap))
        assert np.isfinite(curves[-1]).all()
        gaussian = gaussian_rdp(orders, **noise, sensitivity=math.sqrt(2 if swap else 1))
        assert (curves[-1] <= gaussian).all()
    assert (curves[0] <= curves[1] * (1 + 1e-7)).all()


def test_the_tail_bound_covers_the_mass_it_stands_for():
    """Outside |u|, |v| <= L, M^t P^(1-t) sums to less than exp(-60) in both directions."""
    sigma, gamma, order = 2.0, 0.4, 5.5
    length = reach(order, sigma, gamma)
    z = np.arange(-3 * length, 3 * length + 1)
    log_mass = -(z**2) / (2 * sigma**2)
    log_mass -= np.logaddexp.reduce(log_mass)
    u, v = z[:, None], z[None, :]
    outside = (np.abs(u) > length) | (np.abs(v) > length)
    log_r = np.logaddexp(math.log(1 - gamma), math.log(gamma) + (u - v - 1) / sigma**2)
    for t in (order, 1 - order):
        assert (
            np.logaddexp.reduce((log_mass[:, None] + log_mass[None, :] + t * log_r)[outside]) < -60
        )
