"""Absent devices are refused, process settings are restored, inexact products are not used."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch

from labelwall.teacher.search import devices
from labelwall.teacher.search.devices import PRODUCTS, aligned, device_of, product_on, reproducible
from labelwall.wall.errors import InvalidInput
from tests.teacher.search.indexes import DEVICES, PRESENT


@pytest.mark.parametrize("name", PRESENT)
def test_a_device_that_is_there_is_found(name):
    assert device_of(name).type == name


def test_a_device_that_is_not_there_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: None)
    text = r"^`device` must be cpu on this machine\. Found 'cuda'\.$"
    with pytest.raises(InvalidInput, match=text):
        device_of("cuda")


def _settings() -> tuple[object, ...]:
    cudnn = torch.backends.cudnn
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(),
        (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32),
    )


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_settings_hold_inside_and_are_put_back(precision):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        outside = _settings()
        with contextlib.suppress(KeyError), reproducible():
            inside = _settings()
            raise KeyError
        assert inside == (True, False, "highest", (True, False, True, False))
        assert _settings() == outside
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_products_are_exact_at_the_largest_entries_whatever_the_process_asked_for(name, product):
    rng, before = np.random.default_rng(0), torch.get_float32_matmul_precision()
    right = rng.integers(-63, 64, (64, 4000)).astype(np.int8)
    right[0], right[1] = 63, -63
    left = (-2 * right[:32]).astype(np.int8)
    torch.set_float32_matmul_precision("medium")
    try:
        found = product(*(torch.from_numpy(rows).to(name) for rows in (left, right))).cpu().numpy()
    finally:
        torch.set_float32_matmul_precision(before)
    assert found.dtype == np.int32
    assert found.min() == -2 * 63 * 63 * 4000
    np.testing.assert_array_equal(found, left.astype(np.int64) @ right.astype(np.int64).T)


def test_a_product_that_is_missing_or_off_by_one_is_not_used(monkeypatch):
    def wrong(left, right):
        found = devices.int8_product(left, right)
        found[-1, -1] += 1
        return found

    def missing(left, right):
        raise RuntimeError

    choose, processor = product_on.__wrapped__, torch.device("cpu")
    for broken in (wrong, missing):
        monkeypatch.setattr(
            devices, "PRODUCTS", {"int8": broken, "float32": devices.float32_product}
        )
        assert choose(processor) is devices.float32_product
    monkeypatch.setattr(devices, "PRODUCTS", {"int8": missing})
    with pytest.raises(InvalidInput, match="exact products"):
        choose(processor)


def test_sizes_are_rounded_up_to_eights():
    assert [aligned(count) for count in (0, 1, 8, 9, 4000)] == [0, 8, 8, 16, 4000]
