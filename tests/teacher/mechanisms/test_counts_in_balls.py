"""Records as points: radii, balls and grids against plain loops over integers."""

from functools import partial

import numpy as np
import pytest

from labelwall.teacher.mechanisms.counts_in_balls import (
    EVERYWHERE,
    ball_counts,
    ball_votes,
    grid_counts,
    landmark_radii,
    one_row_each,
)
from labelwall.teacher.search.cpu import ExactIndex

CLASSES = 3


class Scene:
    """Rows of persons, or of nobody's, with labels; queries; plain distances."""

    def __init__(self, of_persons):
        rng = np.random.default_rng(3)
        self.queries, self.rows = (rng.integers(-9, 10, (n, 2)).astype(np.int8) for n in (8, 60))
        self.labels, persons = rng.integers(0, CLASSES, 60), rng.integers(0, 20, 60)
        self.owners = persons if of_persons else np.arange(60)
        self.index = ExactIndex(self.rows, np.arange(60), persons if of_persons else None)

    def apart(self, query):
        difference = self.rows.astype(int) - self.queries[query].astype(int)
        return (difference**2).sum(axis=1)

    def nearest_of_each(self, apart):
        """The nearest row of each owner, ties by id."""
        owned = (np.flatnonzero(self.owners == owner) for owner in np.unique(self.owners))
        return [min(rows.tolist(), key=lambda row: (apart[row], row)) for rows in owned]


@pytest.mark.parametrize("of_persons", [False, True])
def test_each_owner_votes_in_a_ball_with_its_nearest_row(of_persons):
    scene, radii = Scene(of_persons), np.arange(8) ** 2 * 3
    drawn = ball_votes(scene.queries, radii, CLASSES, scene.index, scene.labels)
    for query, radius in enumerate(radii.tolist()):
        apart = scene.apart(query)
        inside = [row for row in scene.nearest_of_each(apart) if apart[row] <= radius]
        expected = np.bincount(scene.labels[inside], minlength=CLASSES)
        assert drawn[query].tolist() == expected.tolist()


@pytest.mark.parametrize("of_persons", [False, True])
def test_in_a_batch_an_owner_is_its_row_that_is_nearest_to_any_query(of_persons):
    scene, radii = Scene(of_persons), np.array([0, 9, 50, 10**4])
    apart = np.array([scene.apart(query) for query in range(8)])
    rows = scene.nearest_of_each(apart.min(axis=0))
    count = partial(ball_counts, scene.queries, radii)
    drawn = one_row_each(count, scene.queries, scene.index, scene.labels)
    assert drawn.tolist() == [[int((a[rows] <= r).sum()) for r in radii] for a in apart]
    places = (scene.rows[rows].astype(int) + 63) * 4 // 127  # of four a side
    expected = np.bincount(places @ [1, 4], minlength=16)
    in_grid = one_row_each(partial(grid_counts, 4), scene.queries, scene.index, scene.labels)
    assert in_grid.tolist() == expected.tolist()


def test_a_radius_is_the_distance_to_a_public_row():
    rng = np.random.default_rng(0)
    queries, rows = (rng.integers(-9, 10, (n, 3)).astype(np.int8) for n in (20, 50))
    rows[:5] = queries[:5]
    for share in (0.001, 0.1, 0.5, 1.0):
        wanted = max(1, round(50 * share))
        expected = []
        for query in queries.astype(int):
            apart = sorted(d for d in ((rows.astype(int) - query) ** 2).sum(axis=1).tolist() if d)
            expected.append(apart[wanted - 1] if len(apart) >= wanted else EVERYWHERE)
        assert landmark_radii(queries, rows.tobytes(), share).tolist() == expected
