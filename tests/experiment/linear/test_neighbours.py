"""What a model says of rows, mixed with what it says of the public rows nearby."""

from __future__ import annotations

import numpy as np

from labelwall.experiment.linear.model import NEIGHBOURS, SHARE, with_neighbours


def rows(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-63, 64, (count, 5)).astype(np.int8)


def says(features: np.ndarray) -> np.ndarray:
    scores = np.exp(features[:, :3] / 20.0)
    found: np.ndarray = (scores / scores.sum(axis=1, keepdims=True)).astype(np.float32)
    return found


def test_a_row_is_mixed_with_the_mean_of_its_nearest_public_rows() -> None:
    """Against all squared distances, equal ones by their number."""
    public, asked = rows(60, 0), rows(20, 1)
    away = asked.astype(int)[:, np.newaxis] - public.astype(int)
    nearest = np.argsort((away**2).sum(axis=2), axis=1, kind="stable")[:, :NEIGHBOURS]
    mixed = (1 - SHARE) * says(asked) + SHARE * says(public)[nearest].mean(axis=1)
    found = with_neighbours(says, public)(asked)
    np.testing.assert_allclose(found, mixed, atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)
    assert found.dtype == np.float32


def test_rows_do_not_depend_on_one_another() -> None:
    mixed = with_neighbours(says, rows(60, 0))
    assert np.array_equal(mixed(rows(20, 1))[7:9], mixed(rows(20, 1)[7:9]))


def test_few_public_rows_are_all_neighbours() -> None:
    public = rows(3, 0)
    found = with_neighbours(says, public)(public)
    expected = (1 - SHARE) * says(public) + SHARE * says(public).mean(axis=0)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_wrong_row_among_right_ones_follows_them() -> None:
    """Two groups of rows; the model errs by a little at one row of the first."""
    groups = np.repeat([[40, 0, 0, 0, 0], [-40, 0, 0, 0, 0]], 15, axis=0)
    public = (groups + rows(30, 2) // 20).astype(np.int8)

    def errs(features: np.ndarray) -> np.ndarray:
        first = np.where(features[:, 0] > 0, 0.9, 0.1)
        first[(features == public[4]).all(axis=1)] = 0.45
        return np.stack([first, 1 - first], axis=1).astype(np.float32)

    labels = with_neighbours(errs, public)(public).argmax(axis=1)
    assert labels.tolist() == [0] * 15 + [1] * 15
