"""Hash tables: candidates by definition, and the share of neighbours that they find."""

from __future__ import annotations

import numpy as np
import pytest

from labelwall.teacher.search import cpu, lsh
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.search.kernels import cosine
from labelwall.teacher.search.lsh import HashTables, codes, gathered_products, hyperplanes
from tests.teacher.search.indexes import PRODUCTS

D, TABLES, BITS, SEED = 24, 5, 4, 3


def features(n: int, seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(n, D)) * 20
    x[1::9] = x[0]
    x[2] = 0
    return np.clip(np.rint(x), -63, 63).astype(np.int8)


def test_candidates_are_those_on_the_same_side_of_all_planes_of_a_table() -> None:
    x, q = features(400, 1), features(15, 2)
    planes = hyperplanes(TABLES * BITS, D, SEED).astype(np.int64).reshape(TABLES, BITS, D)
    sides = [np.einsum("tbd,nd->ntb", planes, rows.astype(np.int64)) >= 0 for rows in (x, q)]
    for product in PRODUCTS.values():
        tables = HashTables.build(x, TABLES, BITS, SEED, product)
        for j, row in enumerate(codes(q, tables.planes, BITS, product)):
            expected = (sides[0] == sides[1][j]).all(axis=2).any(axis=1)
            np.testing.assert_array_equal(tables.candidates(row), np.flatnonzero(expected))
            assert 0 < expected.sum() < 400


@pytest.mark.parametrize(
    "cost", [0, 10**6], ids=["candidates gathered", "products of the whole batch"]
)
def test_hashed_selection_is_the_exact_one_among_candidates_whatever_the_company(
    cost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "GATHER_COST", cost)
    monkeypatch.setattr(lsh, "GATHER_ROWS", 7)
    x, q, hashing = features(300, 1), features(12, 2), (TABLES, BITS, SEED)
    select = cosine(0.3)
    exact = ExactIndex(x, np.arange(300), threads=1).similar(q, select)
    hashed = ExactIndex(x, np.arange(300)[::-1].copy(), threads=2).similar(q, select, hashing)
    alone = [
        ExactIndex(x[[i]], np.zeros(1, np.int64), threads=1).similar(q, select, hashing)
        for i in range(300)
    ]
    fewer = 0
    for j in range(12):
        full = dict(zip(exact[j].rows.tolist(), exact[j].weights.tolist(), strict=True))
        found = dict(zip(hashed[j].rows.tolist(), hashed[j].weights.tolist(), strict=True))
        assert found == {i: full[i] for i in range(300) if len(alone[i][j].rows)}
        fewer += len(found) < len(full)
    assert fewer > 5


def test_collisions_have_the_law_of_random_hyperplanes() -> None:
    """P(same side) = 1 - angle / pi: pairs at a right angle and at 60 degrees, over many planes."""
    planes = hyperplanes(4000, 2 * D, 1).astype(np.int64)
    x, y = np.zeros(2 * D, np.int64), np.zeros(2 * D, np.int64)
    x[:D], y[D:] = 1, 1
    at_60_degrees = np.tile(np.repeat([1, 0], D // 2), 2)
    for other, share in ((y, 1 / 2), (at_60_degrees, 2 / 3)):
        same = ((planes @ x >= 0) == (planes @ other >= 0)).mean()
        assert abs(same - share) < 0.03
    assert len(np.unique(planes[:, 0])) > 60
    assert abs(planes.mean()) < 1


def test_products_of_gathered_rows_are_the_integers_themselves() -> None:
    x, q = np.full((1300, D), -63, dtype=np.int8), features(9, 2)[0]
    x[::3] = features(434, 4)
    rows = np.flatnonzero(np.random.default_rng(5).random(1300) < 0.9)
    for product in PRODUCTS.values():
        expected = -2 * (x[rows].astype(np.int64) @ q.astype(np.int64))
        np.testing.assert_array_equal(gathered_products(x, rows, q, product), expected)
        assert gathered_products(x, rows[:0], q, product).shape == (0,)


def test_no_records_and_no_queries_have_no_candidates() -> None:
    none, hashing = np.zeros((0, D), dtype=np.int8), (TABLES, BITS, SEED)
    empty = ExactIndex(none, np.zeros(0, np.int64))
    found = empty.similar(features(9, 1), cosine(0.3), hashing)
    assert [len(similar.rows) for similar in found] == [0] * 9
    assert ExactIndex(features(9, 1), np.arange(9)).similar(none, cosine(0.3), hashing) == []
