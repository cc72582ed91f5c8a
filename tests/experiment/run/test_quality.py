"""What labels are worth: estimated after a round, right on average whatever the noise; the better
round is kept."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from labelwall.experiment.run import quality
from labelwall.student.held_out import Cleaned
from labelwall.wall.matrices import inherit


@pytest.mark.parametrize("noise", [1.0, 10.0, 40.0, 200.0])
@pytest.mark.parametrize("purity", [0.3, 0.6, 0.9])
def test_counts_tell_how_many_votes_the_labels_have(purity: float, noise: float) -> None:
    """Against the share of true votes that the released labels have; never better by chance.

    Of 100 votes in a cell ``purity`` fall on its own class, the rest evenly on the four others.
    """
    true, rows = np.full((40, 5), 25 * (1 - purity)), np.repeat(np.arange(40), 3)[:, None]
    true[np.arange(40), np.arange(40) % 5] = 100 * purity
    true = np.rint(true).astype(np.int64)
    found, real = [], []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        noisy = true + np.rint(rng.normal(0, noise, true.shape)).astype(np.int64)
        labels, _ = inherit(noisy, rows, 0.0)
        real.append((true[rows[:, 0], labels] / true.sum(axis=1)[rows[:, 0]]).mean())
        found.append(quality.by_counts(noisy, rows, 0.0, noise).right)
    assert np.mean(found) <= np.mean(real) + 0.05  # the labels scored have more noise
    if noise <= 10:
        assert np.mean(found) == pytest.approx(np.mean(real), abs=0.03)
    assert quality.by_counts(true - 200, rows, 0.0, noise).right == 0.0  # no votes are no error


def of(share: float | None, by: str = quality.COUNTS) -> quality.Estimate | None:
    return None if share is None else quality.Estimate(share, 0.01, by)


@pytest.mark.parametrize(
    ("estimates", "kept"),
    [
        ([of(0.5)], 1),
        ([of(0.5), of(0.7)], 2),
        ([of(0.58), of(0.29)], 1),
        ([of(0.58), of(0.57)], 2),  # as good as the first, by what is known
        ([of(0.58), of(0.29), of(0.7)], 3),
        ([of(0.58), of(0.29), of(0.3)], 1),
        ([of(None), of(0.2)], 2),
        ([of(0.9), of(None)], 2),  # nothing is known of it
        ([of(0.9), of(0.2, quality.AGREEMENT)], 2),  # another measure
    ],
)
def test_the_last_round_that_is_not_worse_is_kept(estimates, kept: int) -> None:
    assert quality.best_round(estimates) == kept


def test_an_estimate_that_noise_moves_says_nothing() -> None:
    """It still has a place among rounds, where it is worse than none."""
    sure = np.full(400, 0.8)
    narrow, wide = (
        quality.by_probabilities(sure, (0.77, 0.83)),
        quality.by_probabilities(sure, (0.6, 0.95)),
    )
    assert (narrow.known, narrow.text()) == (True, "about 80% right by probabilities")
    assert (wide.known, wide.text()) == (False, "unknown (the noise hides how sure labels may be)")
    assert wide.error > 0.17
    assert narrow.error == pytest.approx(0.036, abs=0.001)
    assert not quality.worse(wide, narrow)


def test_an_estimate_survives_its_json() -> None:
    estimate = quality.by_agreement(Cleaned(np.zeros(3), 0.75, 400))
    assert estimate is not None
    assert estimate.text() == "about 75% consistent by cross-validation"
    assert quality.estimate_of({"estimate": json.loads(json.dumps(asdict(estimate)))}) == estimate
    assert quality.estimate_of({"estimate": None}) is quality.estimate_of({}) is None
    assert quality.by_agreement(Cleaned(np.zeros(3))) is None
