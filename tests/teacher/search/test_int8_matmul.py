"""Products of int8 rows on the processor: against int64, with and without VNNI instructions."""

import numpy as np
import pytest
import torch

from labelwall.teacher.search import accelerators, int8_matmul
from tests.teacher.search.indexes import PRESENT, PRODUCTS, int_features

needs_vnni = pytest.mark.skipif(
    not int8_matmul.has_kernel(), reason="this processor has no AVX-512 VNNI"
)


def exact(left, right):
    return left.astype(np.int64) @ right.astype(np.int64).T


@pytest.mark.parametrize("precision", ["highest", "medium"])
@pytest.mark.parametrize(
    "product",
    [
        *(pytest.param(product, id=name) for name, product in PRODUCTS.items()),
        *(
            pytest.param(
                accelerators.on_arrays(product, torch.device(device)), id=f"{name} on {device}"
            )
            for name, product in accelerators.PRODUCTS.items()
            for device in PRESENT
        ),
    ],
)
def test_products_are_exact_at_the_largest_entries_and_dimensions(product, precision):
    """Whatever precision the process has asked torch for."""
    signs = np.array([[1], [-1]], dtype=np.int8)
    right = np.concatenate([63 * signs * np.ones((2, 4000), np.int8), int_features(0, 30, 4000)])
    left, before = int8_matmul.minus_twice(right), torch.get_float32_matmul_precision()
    out = np.empty((len(left), len(right)), dtype=np.int32)
    torch.set_float32_matmul_precision(precision)
    try:
        product(left, right, out)
    finally:
        torch.set_float32_matmul_precision(before)
    np.testing.assert_array_equal(out, exact(left, right))
    assert out.min() == -2 * 63 * 63 * 4000


def wrong(left, right, out):
    out[:] = exact(left, right)
    out[-1, -1] += 1


def absent(left, right, out):
    raise NotImplementedError


@pytest.mark.parametrize("broken", [wrong, absent])
def test_a_product_that_is_missing_or_wrong_is_not_chosen(monkeypatch, broken):
    monkeypatch.setattr(int8_matmul, "instructions", lambda: {"avx512vnni"})
    monkeypatch.setattr(int8_matmul, "int8_product", broken)
    assert int8_matmul.best_product.__wrapped__() is int8_matmul.float32_product
    monkeypatch.undo()
    monkeypatch.setattr(int8_matmul, "instructions", lambda: {"avx2"})
    assert int8_matmul.best_product.__wrapped__() is int8_matmul.float32_product


@needs_vnni
def test_int8_is_chosen_where_the_processor_has_instructions_for_it():
    assert int8_matmul.best_product.__wrapped__() is int8_matmul.int8_product


@pytest.mark.parametrize("queries", [1, 2, 15, 16, 17])
@pytest.mark.parametrize("records", [7, 8, 9, 16, 33])
@pytest.mark.parametrize("dimensions", [4, 6, 8, 60, 64, 68, 132, 1296])
def test_products_of_few_queries_are_exact(queries, records, dimensions):
    """By the kernel, or by oneDNN where there is none or they do not fit it."""
    left = int8_matmul.minus_twice(int_features(1, queries, dimensions))
    # Rows of a larger array: what surrounds them must not be read into a sum, nor written.
    right = int_features(2, records + 2, dimensions)[1:-1]
    out = np.full((queries + 2, records), 7, dtype=np.int32)
    int8_matmul.int8_product(left, right, out[1:-1])
    np.testing.assert_array_equal(out[1:-1], exact(left, right))
    assert (out[[0, -1]] == 7).all()


@needs_vnni
@pytest.mark.parametrize("entries", [(127, -128), (-128, -128), (-128, 127)])
def test_the_largest_entries_and_dimensions_do_not_overflow(entries):
    left, right = (np.full((9, 4000), entry, dtype=np.int8) for entry in entries)
    out = np.empty((9, 9), dtype=np.int32)
    int8_matmul.few_queries_product(left, right, out)
    assert (out == entries[0] * entries[1] * 4000).all()


def test_rows_that_do_not_lie_one_behind_the_other_are_left_to_onednn():
    left, wide = int_features(0, 3, 8), int_features(1, 40, 16)
    out = np.empty((3, 20), dtype=np.int32)
    for right in (wide[::2, :8], wide[:20, 8:]):
        int8_matmul.int8_product(left, right, out)
        np.testing.assert_array_equal(out, exact(left, right))


@pytest.mark.parametrize("broken", [wrong, absent])
def test_without_the_instructions_onednn_multiplies(monkeypatch, broken):
    monkeypatch.setattr(int8_matmul, "few_queries_product", broken)
    monkeypatch.setattr(int8_matmul, "has_kernel", int8_matmul.has_kernel.__wrapped__)
    assert not int8_matmul.has_kernel()
    left, right, out = int_features(2, 5, 8), int_features(3, 20, 8), np.zeros((5, 20), np.int32)
    int8_matmul.int8_product(left, right, out)
    np.testing.assert_array_equal(out, exact(left, right))
