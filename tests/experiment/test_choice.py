"""Which public rows are asked: never twice for nothing, the same ones after a restart, and typical
where it is told to."""

import numpy as np
import pytest

from labelwall.experiment.run.query_selection import TYPICAL_SHARE, choose_queries, typical_rows


def blobs(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(features float32 [600, 8], distances to the own centre [600]) of four clouds of 150 rows."""
    noise = np.random.default_rng(seed).normal(size=(600, 8))
    features = np.repeat(40 * np.eye(4, 8), 150, axis=0) + noise
    return features.astype(np.float32), np.linalg.norm(noise, axis=1)


def test_rows_never_asked_come_first_then_those_without_an_answer() -> None:
    status = np.array([2, 0, 1, 0, 2, 1, 0], dtype=np.uint8)
    rows = choose_queries(0, 2, status, 4)
    assert set(rows[:3]) == {1, 3, 6}
    assert rows[3] in (2, 5)
    assert sorted(choose_queries(0, 2, status, 100)) == [1, 2, 3, 5, 6]


@pytest.mark.parametrize("features", [None, blobs(0)[0]])
def test_a_round_repeats_its_choice_and_another_seed_or_round_makes_another(
    features: np.ndarray | None,
) -> None:
    status = np.zeros(600, dtype=np.uint8)
    first = choose_queries(7, 1, status, 40, features)
    assert len(set(first)) == 40
    np.testing.assert_array_equal(choose_queries(7, 1, status, 40, features), first)
    assert not np.array_equal(choose_queries(7, 2, status, 40, features), first)
    assert not np.array_equal(choose_queries(8, 1, status, 40, features), first)
    status[first] = 1
    assert not set(choose_queries(7, 2, status, 200, features)) & set(first)


def test_typical_rows_are_dense_cover_every_cloud_and_come_before_the_others() -> None:
    features, distance = blobs(1)
    rows = typical_rows(features, 40, seed=3)
    assert len(set(rows)) == 40
    assert np.bincount(rows // 150, minlength=4).min() >= 5
    assert distance[rows].mean() < distance.mean() - 0.1  # at random the means would be alike
    rows, half = typical_rows(features, 600, seed=3), int(600 * TYPICAL_SHARE)
    assert sorted(rows) == list(range(600))  # all are there in the end
    assert distance[rows[:half]].mean() < distance[rows[half:]].mean()


def test_more_queries_than_distinct_rows() -> None:
    """Duplicates make k-means end with fewer clusters than asked for."""
    features = np.repeat(np.eye(3, 5, dtype=np.float32), 30, axis=0)
    rows = typical_rows(features, 50, seed=0)
    assert len(set(rows)) == 50
