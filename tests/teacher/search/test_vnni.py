"""Products of few queries: against int64, wherever the processor has the instructions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labelwall.teacher.search import int8_matmul, vnni

needs_vnni = pytest.mark.skipif(
    not vnni.is_available(), reason="this processor has no AVX-512 VNNI"
)


@needs_vnni
@pytest.mark.parametrize("queries", [1, 2, 15, 16])
@pytest.mark.parametrize("records", [8, 9, 16, 33])
@pytest.mark.parametrize("dimensions", [4, 5, 6, 7, 63, 64, 65, 130, 1296])
def test_products_are_exact(queries, records, dimensions):
    rng = np.random.default_rng(queries + records + dimensions)
    left = rng.integers(-128, 128, (queries, dimensions)).astype(np.int8)
    # Rows of a larger array: what surrounds them must not be read into a sum, nor written.
    right = rng.integers(-128, 128, (records + 2, dimensions)).astype(np.int8)[1:-1]
    out = np.full((queries + 2, records), 7, dtype=np.int32)
    vnni.product(left, right, out[1:-1])
    np.testing.assert_array_equal(out[1:-1], left.astype(np.int64) @ right.astype(np.int64).T)
    assert (out[[0, -1]] == 7).all()


@needs_vnni
@pytest.mark.parametrize("entries", [(127, -128), (-128, -128), (-128, 127)])
def test_the_largest_entries_and_dimensions_do_not_overflow(entries):
    left, right = (np.full((9, 4000), entry, dtype=np.int8) for entry in entries)
    out = np.empty((9, 9), dtype=np.int32)
    vnni.product(left, right, out)
    assert (out == entries[0] * entries[1] * 4000).all()


@pytest.mark.parametrize(
    ("queries", "records", "shape"),
    [
        ((0, 8), (9, 8), (0, 9)),
        ((17, 8), (9, 8), (17, 9)),
        ((2, 8), (7, 8), (2, 7)),
        ((2, 3), (9, 3), (2, 9)),
        ((2, 8), (9, 9), (2, 9)),
        ((2, 8), (9, 8), (3, 9)),
    ],
)
def test_other_shapes_are_refused(queries, records, shape):
    left, right = np.zeros(queries, dtype=np.int8), np.zeros(records, dtype=np.int8)
    with pytest.raises(ValueError, match="no product"):
        vnni.product(left, right, np.zeros(shape, dtype=np.int32))


@needs_vnni
def test_rows_that_do_not_lie_one_behind_the_other_are_left_to_onednn():
    rng = np.random.default_rng(0)
    left = rng.integers(-63, 64, (3, 8)).astype(np.int8)
    wide, out = rng.integers(-63, 64, (40, 16)).astype(np.int8), np.empty((3, 20), dtype=np.int32)
    for right in (wide[::2, :8], wide[:20, 8:]):
        assert not vnni.fits(left, right, out)
        int8_matmul.int8_product(left, right, out)
        np.testing.assert_array_equal(out, left.astype(np.int64) @ right.astype(np.int64).T)
    with pytest.raises(ValueError, match="no product"):
        vnni.product(left, wide[:20, :8].astype(np.int16), out)


@pytest.mark.parametrize("broken", ["absent", "wrong"])
def test_without_the_instructions_onednn_multiplies(monkeypatch, broken):
    def wrong(left, right, out):
        out[:] = 1

    def absent(left, right, out):
        raise NotImplementedError

    monkeypatch.setattr(vnni, "product", {"absent": absent, "wrong": wrong}[broken])
    monkeypatch.setattr(vnni, "is_available", vnni.is_available.__wrapped__)
    assert not vnni.is_available()
    left, right = torch.randint(-63, 64, (25, 8), dtype=torch.int8).split([5, 20])
    out = np.zeros((5, 20), dtype=np.int32)
    int8_matmul.int8_product(left.numpy(), right.numpy(), out)
    np.testing.assert_array_equal(out, left.numpy().astype(int) @ right.numpy().astype(int).T)
