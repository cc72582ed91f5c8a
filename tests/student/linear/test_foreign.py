"""Verdicts on public rows: each limit of the rules, and hits and false alarms on made shifts."""

import numpy as np
import pytest
import torch

from labelwall.student.linear import shift_of_counts, shift_of_gradients
from labelwall.student.linear.linear_model import fit
from labelwall.student.linear.moments import Moment
from labelwall.student.linear.shares import Misfit
from labelwall.student.linear.shift_of_counts import compared
from labelwall.student.linear.shift_of_gradients import shifted
from tests.experiment import tiny
from tests.student.linear.test_fits import settings, teacher

EQUAL, SKEWED, RARE = [1 / 3] * 3, [0.7, 0.2, 0.1], [0.475, 0.475, 0.05]
CELLS, DRAWS = 30, 8


def test_a_misfit_is_measured_beside_chance() -> None:
    misfit = Misfit(unshifted=500.0, left=150.0, chance=100.0, parameters=2)
    assert (misfit.residual, misfit.to_explain, misfit.times_chance) == (50.0, 400.0, 1.5)
    assert misfit.tells_of_a_shift
    assert not Misfit(unshifted=158.0, left=150.0, chance=100.0, parameters=2).tells_of_a_shift
    assert Misfit(unshifted=500.0, left=50.0, chance=100.0, parameters=2).times_chance == 1.0


@pytest.mark.parametrize(
    ("left", "unshifted", "signal", "foreign"),
    [
        (200.0, 230.0, 300.0, True),
        (160.0, 130.0, 170.0, False),  # 4.2 deviations of chance
        (200.0, 230.0, 304.0, False),  # 32.9% of the signal
        (200.0, 239.0, 300.0, False),  # 71.9% of what was to be explained
    ],
)
def test_gradients_of_foreign_rows_pass_three_limits(
    left: float, unshifted: float, signal: float, foreign: bool
) -> None:
    misfit = Misfit(unshifted=unshifted, left=left, chance=100.0, parameters=4)
    assert shift_of_gradients.is_foreign(misfit, signal) is foreign


@pytest.mark.parametrize(
    ("left", "unshifted", "unexplained", "foreign"),
    [
        (260.0, 500.0, 0.51, True),
        (250.0, 500.0, 0.51, False),  # 2.5 times chance
        (260.0, 500.0, 0.5, False),  # half of the ballots
        (260.0, 600.0, 0.51, False),  # 32% of what was to be explained
        (260.0, 600.0, 1.01, True),
    ],
)
def test_counts_of_foreign_rows_pass_three_limits(
    left: float, unshifted: float, unexplained: float, foreign: bool
) -> None:
    misfit = Misfit(unshifted=unshifted, left=left, chance=100.0, parameters=2)
    assert shift_of_counts.is_foreign(misfit, unexplained) is foreign


def seen_by_gradients(skew: float, mixed: float, noise: float) -> float:
    """Share of draws that are called foreign, by the gradient of 2,000 records at weights of 0.

    Their logits of the classes are so ``skew``; so much of their weights is of another source.
    """
    found = []
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        weights, others = rng.normal(size=(2, 31, 3))
        x, public = (np.column_stack([rng.normal(size=(n, 30)), np.ones(n)]) for n in (2_000, 500))
        logits = x @ ((1 - mixed) * weights + mixed * others) + skew * np.array([1, 0, -1])
        labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        gradient = x.T @ (1 / 3 - np.eye(3)[labels]) / len(x) + rng.normal(0, noise, (31, 3))
        equal = torch.full((len(public), 3), 1 / 3, dtype=torch.float64)
        moment = Moment(
            gradient=torch.tensor(gradient - gradient.mean(axis=1, keepdims=True)),
            deviation=noise,
            inputs=torch.tensor(public),
            asked=[(equal, torch.ones_like(equal))],
        )
        found.append(shifted(public @ weights, [moment])[1].foreign)
    return float(np.mean(found))


def seen_by_counts(private: list[float], public: list[float], mixed: float, noise: float) -> float:
    """Share of draws that are called foreign; so much of the public rows is of another source."""
    found = []
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        records, others = (rng.dirichlet(np.full(CELLS, 0.3), 3).T for _ in range(2))
        votes = rng.poisson(4_000 * records * private) + rng.normal(0, noise, records.shape)
        source = (1 - mixed) * records @ public + mixed * others @ public
        found.append(compared(votes, noise, rng.multinomial(1_000, source))[1].foreign)
    return float(np.mean(found))


@pytest.mark.parametrize("noise", [0.005, 0.02])
def test_gradients_of_another_source_are_hits_and_of_other_shares_no_alarms(noise: float) -> None:
    for skew in (0.0, 3.0):
        assert seen_by_gradients(skew, 0.0, noise) == 0.0
    assert seen_by_gradients(0.0, 1.0, noise) > 0.7


@pytest.mark.parametrize(("private", "public"), [(EQUAL, EQUAL), (EQUAL, SKEWED), (RARE, EQUAL)])
def test_counts_of_another_source_are_hits_and_of_other_shares_no_alarms(
    private: list[float], public: list[float]
) -> None:
    assert seen_by_counts(private, public, 0.0, 1.0) == seen_by_counts(private, public, 0.0, 10.0)
    assert seen_by_counts(private, public, 0.0, 10.0) == 0.0
    assert seen_by_counts(private, public, 1.0, 1.0) > 0.7


@pytest.mark.parametrize(("slope", "offset"), [(0.3, 1.0), (0.6, 1.0), (0.6, 1.2)])
def test_labels_that_are_hardly_predictable_are_no_alarm(slope: float, offset: float) -> None:
    """Nearly all residuals are clipped, so that the classifier's own factor is far off."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4_800, 8))
    labels = (slope * x[:, 0] - offset + rng.logistic(size=len(x)) > 0).astype(np.int64)
    features, how = tiny.integers(x), settings("class", 2, 7.4, 20)
    model = fit(teacher(labels[:4_000], how, features[:4_000]), features[4_000:], how)
    assert model is not None
    assert model.shares is not None
    assert not model.shares.foreign
