"""What noisy counts by bin tell, beside scikit-learn on the rows themselves."""

import math
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, recall_score, roc_auc_score

from labelwall.experiment.run.noisy_measures import (
    by_threshold,
    decisions,
    known,
    noisy_auroc,
    noisy_shares,
)

EDGES = np.array([-2.0, -0.5, 0.0, 0.8, 3.0])


def rows(n: int, seed: int, apart: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.random(n) < 0.3
    return rng.normal(apart * (truth - 0.5), 1.0), truth


def counted(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    bins = (scores[:, None] > EDGES).sum(axis=1)
    counts = np.zeros((len(EDGES) + 1, 2))
    np.add.at(counts, (bins, truth.astype(int)), 1)
    return counts


@pytest.mark.parametrize("apart", [0.0, 1.5, 4.0, -1.0])
def test_without_noise_they_are_scikit_learns(apart: float) -> None:
    scores, truth = rows(700, 1, apart)
    counts, bins = counted(scores, truth), (scores[:, None] > EDGES).sum(axis=1)
    auroc, error, ties = noisy_auroc(counts, 0.0)
    assert auroc == pytest.approx(roc_auc_score(truth, bins), abs=1e-9)
    assert error == 0.0
    assert abs(roc_auc_score(truth, scores) - auroc) <= ties
    same = (bins[truth][:, None] == bins[~truth]).mean()
    assert ties == pytest.approx(same / 2, abs=1e-9)
    told = by_threshold(counts, EDGES, 0.0)
    assert told.auroc == (round(auroc, 4), 0.0, round(ties, 4))
    for edge, table in zip(EDGES, told.tables, strict=True):
        said = scores > edge
        found = noisy_shares(counts[1:].sum(axis=0)[1], counts[0, 1], 0.0)[0]
        assert edge != EDGES[0] or found == pytest.approx(recall_score(truth, said), abs=1e-9)
        assert table.threshold == pytest.approx(1 / (1 + math.exp(-edge)), rel=1e-3)
        assert table.sensitivity == known(recall_score(truth, said), 0.0)
        assert table.specificity == known(recall_score(~truth, ~said), 0.0)
    assert told.balanced_accuracy is not None
    balanced = balanced_accuracy_score(truth, scores > 0)
    assert told.balanced_accuracy[0] == pytest.approx(balanced, abs=1e-4)
    (right, wrong) = decisions(counts[None], EDGES[None], classes=True)
    shares = noisy_shares(right, wrong, 0.0)[0]
    assert shares[1] == pytest.approx(recall_score(truth, scores > 0), abs=1e-9)
    assert shares.mean() == pytest.approx(balanced, abs=1e-9)
    of_attribute = decisions(counts[None], EDGES[None], classes=False)
    assert of_attribute[0, 0] == ((scores > 0) == truth).sum() == right.sum()
    assert of_attribute.sum() == 700 == right.sum() + wrong.sum()


@pytest.mark.parametrize("noise", [1.0, 4.0, 9.0])
def test_intervals_hold_about_as_often_as_they_say(noise: float) -> None:
    """Of 2,000 draws; 95% of the binned measures, and more of the AUROC of the scores."""
    scores, truth = rows(900, 2)
    counts, exact = counted(scores, truth), roc_auc_score(truth, scores)
    binned, _, _ = noisy_auroc(counts, 0.0)
    true = by_threshold(counts, EDGES, 0.0)
    rng, held = np.random.default_rng(3), []
    draws, errors = [], []
    for _ in range(2000):
        drawn = counts + np.rint(rng.normal(0, noise, counts.shape))
        auroc, error, ties = noisy_auroc(drawn, noise)
        told = by_threshold(drawn, EDGES, noise)
        draws.append(auroc)
        errors.append(error)
        pairs = [(told.balanced_accuracy, true.balanced_accuracy)]
        for one, other in zip(told.tables[1:4], true.tables[1:4], strict=True):
            pairs += [(one.sensitivity, other.sensitivity), (one.specificity, other.specificity)]
        inside = [abs(a[0] - e[0]) <= 1.96 * a[1] + 1e-4 for a, e in pairs if a and e]
        near = abs(auroc - binned) <= 1.96 * error, abs(auroc - exact) <= 1.96 * error + ties
        held.append([*near, np.mean(inside)])
    of_bins, of_scores, of_tables = np.mean(held, axis=0)
    assert 0.93 < of_bins < 0.98
    assert of_scores > 0.94
    assert 0.93 < of_tables < 0.98
    assert np.std(draws) == pytest.approx(np.median(errors), rel=0.12)
    assert np.mean(draws) == pytest.approx(binned, abs=0.2 * np.std(draws))


def test_what_noise_hides_is_unknown() -> None:
    scores, truth = rows(60, 4)
    told = by_threshold(counted(scores, truth), EDGES, 20.0)
    assert (told.auroc, told.balanced_accuracy) == (None, None)
    assert {(t.sensitivity, t.specificity) for t in told.tables} == {(None, None)}
    nobody = by_threshold(np.zeros((6, 2)), EDGES, 0.0)
    assert nobody.auroc is None
    assert by_threshold(np.full((6, 2), -5.0), EDGES, 1.0).auroc is None


def test_the_errors_of_the_page() -> None:
    """Of docs/decisions.md: 5,000 records, noise 16.7; by thresholds at quantiles and at 0."""
    truth = np.arange(5000) % 2 == 0
    scores = np.random.default_rng(0).normal(2.0 * (truth - 0.5), 1.0)
    found = {}
    for count in (1, 4, 8, 16):
        ranks = np.arange(1, count + 1) / (count + 1)
        edges = np.quantile(scores, ranks)
        edges[np.abs(ranks - 0.5).argmin()] = 0.0
        counts = np.zeros((count + 1, 2))
        np.add.at(counts, ((scores[:, None] > edges).sum(axis=1), truth.astype(int)), 1)
        of, summed = (
            decisions(c[None], edges[None], classes=True) for c in (counts, 0 * counts + 1)
        )
        _, doubt = noisy_shares(*of.sum(axis=1), 16.7, summed.sum(axis=1))
        _, error, ties = noisy_auroc(counts, 16.7)
        found[count] = round(100 * float(doubt), 1), round(error, 3), round(ties, 2)
    page = (Path(__file__).parents[3] / "docs" / "decisions.md").read_text()
    for count, (doubt, error, ties) in found.items():
        assert f"| {count} | {doubt:.1f} | {error:.3f} | {ties:.2f} |" in page
