"""Features depend on the record alone, are finite or dropped, and agree with float features."""

import itertools
from decimal import Decimal, localcontext

import numpy as np
import pytest

from labelwall.wall.errors import InvalidInput
from labelwall.wall.features.embedder import CHUNK, Embedder, folded_sum, quantise, unit_length
from labelwall.wall.hog import cell_size
from labelwall.wall.messages import ExtractorSpec
from tests.make import bars

HOG = ExtractorSpec("hog", (28, 28, 1), 10)

# --- quantisation ---


def test_quantised_is_the_rounded_unit_vector():
    x = np.random.default_rng(0).normal(size=(200, 37)).astype(np.float32)
    center = tuple(np.linspace(-1, 1, 37))
    integers, finite = quantise(x, center, 120.0)
    moved = x.astype(np.longdouble) - np.array(center)
    length = np.sqrt((moved**2).sum(axis=1, keepdims=True))
    expected = np.clip(np.rint(120 * moved / length), -63, 63)
    assert integers.dtype == np.int8
    assert finite.all()
    np.testing.assert_array_equal(integers, expected)
    assert (abs(integers) == 63).any()  # some entries clip


def test_rows_that_are_not_finite_are_zeros_and_reported():
    x = np.ones((6, 3), dtype=np.float32)
    x[1, 0], x[2, 1], x[3, 2], x[4], x[5] = np.nan, np.inf, -np.inf, 3e38, 0
    integers, finite = quantise(x, (), 40.0)
    np.testing.assert_array_equal(finite, [True, False, False, False, True, True])
    assert not integers[[1, 2, 3, 5]].any()
    # Squares beyond float32 do not overflow.
    np.testing.assert_array_equal(integers[4], integers[0])


@pytest.mark.parametrize("d", [1, 2, 3, 7, 64, 1296])
def test_folded_sums_are_sums_whatever_the_company(d):
    x = np.random.default_rng(d).normal(size=(50, d))
    sums = folded_sum(x)
    np.testing.assert_allclose(sums[:, 0], x.sum(axis=1), rtol=1e-12, atol=1e-12)
    strided = np.repeat(x, 2, axis=1)[17:18, ::2]
    for layout in (x[17:18], np.asfortranarray(x)[17:18], x[::-1][32:33], strided):
        assert folded_sum(layout)[0, 0] == sums[17, 0]


@pytest.mark.parametrize(
    ("d", "center", "axes", "rule"),
    [
        (3, (0.0,), None, "3 numbers"),
        (4001, (), None, "4000"),
        (0, (), None, "4000"),
        (3, (), np.ones((2, 1)), r"extractor\.axes"),
        (3, (), np.ones((3, 0)), r"extractor\.axes"),
        (3, (), np.ones((3, 4001)), r"extractor\.axes"),
        ((1 << 17) + 1, (), np.ones(((1 << 17) + 1, 1)), "131072"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(d, center, axes, rule):
    with pytest.raises(InvalidInput, match=rule):
        quantise(np.ones((1, d), dtype=np.float32), center, 1.0, axes)


# --- axes ---


def _turned(row, center, axes, scale, radius=0.0):
    """What ``quantise`` must give, in Python's integers and 50 decimal digits."""
    with localcontext(prec=50):
        moved = [Decimal(float(x)) - Decimal(float(c)) for x, c in zip(row, center, strict=True)]
        length = sum(m * m for m in moved).sqrt()
        fine = [int((m / length * 2**20).to_integral_value()) for m in moved]
        sums = [sum(f * int(a) for f, a in zip(fine, column, strict=True)) for column in axes.T]
        norm = Decimal(sum(v * v for v in sums)).sqrt()
        if radius:  # in the unit of a row's product with the axes
            norm = max(norm, Decimal(radius) * 2**20 / length)
        rounded = [int((v / norm * Decimal(scale)).to_integral_value()) for v in sums]
        return [max(-63, min(63, v)) for v in rounded]


def test_axes_turn_rows_exactly_whatever_their_company():
    rng = np.random.default_rng(0)
    x, center = rng.normal(size=(60, 300)).astype(np.float32), rng.normal(size=300).round(6)
    axes = rng.integers(-32767, 32768, (300, 20)).astype(np.float64)
    integers, finite = quantise(x, tuple(center), 80.0, axes)
    assert integers.shape == (60, 20)
    assert finite.all()
    assert integers.tolist() == [_turned(row, center, axes, 80.0) for row in x]
    for rows in (slice(17, 18), slice(None, None, -1), rng.permutation(60)):
        assert np.array_equal(quantise(x[rows], tuple(center), 80.0, axes)[0], integers[rows])
    by_column, axes = np.asfortranarray(x), np.asfortranarray(axes)
    assert np.array_equal(quantise(by_column, tuple(center), 80.0, axes)[0], integers)


def test_rows_up_to_a_radius_keep_their_length_whatever_their_company():
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(60, 9)) * rng.uniform(0.1, 3, (60, 1))).astype(np.float32)
    center, axes = rng.normal(size=9).round(6), rng.integers(-100, 100, (9, 4)).astype(np.float64)
    radius = float(np.median(np.linalg.norm((x - center) @ axes, axis=1)))
    integers, _ = quantise(x, tuple(center), 80.0, axes, radius)
    assert integers.tolist() == [_turned(row, center, axes, 80.0, radius) for row in x]
    lengths = np.linalg.norm(integers, axis=1)
    assert (lengths < 78).sum() >= 25  # of the shorter half
    assert lengths.max() < 82
    for rows in (slice(17, 18), slice(None, None, -1), rng.permutation(60)):
        alone = quantise(x[rows], tuple(center), 80.0, axes, radius)[0]
        assert np.array_equal(alone, integers[rows])
    still, _ = quantise(np.array([center]), tuple(center), 80.0, axes, radius)
    assert still.tolist() == [[0] * 4]


def test_the_largest_sums_are_exact():
    """The most and largest products allowed: their sum is 2^52, and an error of one unit shows."""
    x, axes = np.zeros((3, 1 << 17)), np.full((1 << 17, 2), -32768.0)
    x[0, 0] = x[1] = 1.0
    x[2, 0] = -1.0
    axes[0, 1] = 32767.0
    integers, _ = quantise(x, (), 60.0, axes)
    assert integers.tolist() == [[-42, 42], [-42, -42], [42, -42]]


def test_an_extractor_embeds_along_its_axes():
    axes = np.array([[3, 0], [0, 5], [0, 0]], dtype="<i2")
    spec = ExtractorSpec("raw", (3,), 2, center=(1.0, 0.0, 0.0), axes=axes.tobytes())
    embedder, x = Embedder(spec), np.array([[2, 1, 9], [1, 0, 9]], dtype=np.float32)
    integers, _ = embedder.embed(x)
    # 63 (3, 5) / sqrt(34); and a row that differs from the center along no axis
    assert integers.tolist() == [[32, 54], [0, 0]]
    assert unit_length(spec, 2) == 63.0
    box = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "center": (0.0,) * 3}
    with pytest.raises(InvalidInput, match="box"):
        Embedder(ExtractorSpec("box", (3,), 2, axes=axes.tobytes(), **box))


# --- HOG ---


@pytest.mark.parametrize("workers", [1, 2])
def test_hog_is_a_function_of_the_image_alone(workers):
    images = bars(CHUNK + 40)
    embedder = Embedder(HOG, workers=workers)
    progress: list[tuple[int, int]] = []
    whole, _ = embedder.embed(images, lambda done, total: progress.append((done, total)))
    assert progress == [(CHUNK, len(images)), (len(images), len(images))]
    shifted, _ = embedder.embed(np.concatenate([images[-1:], images]))
    np.testing.assert_array_equal(shifted[1:], whole)
    np.testing.assert_array_equal(embedder.embed(images[7:8])[0], whole[7:8])


@pytest.mark.parametrize(
    ("size", "cells", "dimensions"),
    [
        ((28, 28), (4, 4), 1296),
        ((32, 32), (4, 4), 1764),
        ((64, 64), (6, 6), 2916),
        ((8, 8), (4, 4), 36),
        ((4, 5), (2, 2), 36),
    ],
)
def test_cells_follow_from_the_size(size, cells, dimensions):
    assert cell_size(*size) == cells
    embedder = Embedder(ExtractorSpec("hog", (*size, 1), 2))
    for count in (0, 2):
        flat, finite = embedder.embed(np.ones((count, *size, 1), dtype=np.uint8))
        assert (flat.shape, finite.tolist()) == ((count, dimensions), [True] * count)
        assert not flat.any()
    sizes = [4, 9, 28, 64, 97, 500, 2000]  # exact products need at most 4000 dimensions
    for h, w in itertools.product(sizes, sizes):
        rows, columns = cell_size(h, w)
        assert 36 <= (h // rows - 1) * (w // columns - 1) * 36 <= 4000
    with pytest.raises(InvalidInput, match="at least 4 x 4"):
        cell_size(3, 40)


# --- raw vectors ---


@pytest.mark.parametrize(
    ("spec", "inputs"),
    [
        (HOG, np.zeros((1, 28, 27, 1), dtype=np.uint8)),
        (HOG, np.zeros((1, 28, 28, 1), dtype=np.float32)),
        (ExtractorSpec("hog", (28,), 2), np.zeros((1, 28), dtype=np.float32)),
        (ExtractorSpec("raw", (28, 28, 1), 2), np.zeros((1, 28, 28, 1), dtype=np.uint8)),
        (ExtractorSpec("raw", (5,), 2), np.zeros((1, 4), dtype=np.float32)),
    ],
)
def test_inputs_that_do_not_fit_the_extractor_are_refused(spec, inputs):
    with pytest.raises(InvalidInput):
        Embedder(spec).embed(inputs)


def test_a_box_becomes_the_cube_and_rows_stay_apart():
    spec = ExtractorSpec("box", (2,), 2, mean=(1.0, 0.0), std=(1.0, 10.0))
    rows = [[0, -10], [2, 10], [1, 0], [1.5, 5], [9, -99], [np.nan, 0], [1e30, 0]]
    features, finite = Embedder(spec).embed(np.array(rows, dtype=np.float32))
    assert features.dtype == np.int8
    assert features.tolist() == [[-63, -63], [63, 63], [0, 0], [32, 32], [63, -63], [0, 0], [63, 0]]
    assert finite.tolist() == [True] * 5 + [False, True]
    for sides in ({}, {"mean": (0.0,), "std": (1.0,)}):
        with pytest.raises(InvalidInput, match="one a dimension"):
            Embedder(ExtractorSpec("box", (2,), 2, **sides))
