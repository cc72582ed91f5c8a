"""Histograms of oriented gradients: scikit-image's, a function of the image alone, any size."""

from __future__ import annotations

import numpy as np
import pytest

from labelwall.teacher.features.embedder import Embedder, quantise
from labelwall.teacher.features.hog import CHUNK, HOG_UNIT, cell_size, hog_dimensions, hog_scale
from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import ExtractorSpec
from tests.teacher.features.images import HOG, bars


def test_hog_is_scikit_images_unit_vector():
    from skimage.feature import hog

    images = bars(5)
    options = {"orientations": 9, "pixels_per_cell": (4, 4), "cells_per_block": (2, 2)}
    reference = np.array([hog(x[..., 0], **options) for x in images])
    unit = reference / np.linalg.norm(reference, axis=1, keepdims=True)
    integers, finite = Embedder(HOG, probe=None).embed(images)
    assert integers.shape == (5, 1296)
    assert finite.all()
    assert abs(integers - HOG_UNIT * 36 * unit).max() <= 0.5 + 1e-9


def test_hog_of_colour_takes_the_strongest_gradient():
    grey = bars(4, (32, 32, 1))
    colour = np.concatenate([grey, np.zeros_like(grey), np.zeros_like(grey)], axis=3)
    from_grey, from_colour = (
        Embedder(ExtractorSpec("hog", x.shape[1:], 10), probe=None).embed(x)[0]
        for x in (grey, colour)
    )
    assert from_colour.shape == (4, 1764)
    np.testing.assert_array_equal(from_colour, from_grey)


@pytest.mark.parametrize("workers", [1, 2])
def test_hog_is_a_function_of_the_image_alone(workers):
    images = bars(CHUNK + 40)
    embedder = Embedder(HOG, probe=None, workers=workers)
    told: list[tuple[int, int]] = []
    whole, _ = embedder.embed(images, lambda done, total: told.append((done, total)))
    assert told == [(CHUNK, len(images)), (len(images), len(images))]
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
    assert hog_dimensions(*size) == dimensions
    embedder = Embedder(ExtractorSpec("hog", (*size, 1), 2), probe=None)
    features, _ = embedder.embed(np.ones((2, *size, 1), dtype=np.uint8))
    assert features.shape == (2, dimensions)


def test_every_size_stays_within_exact_products():
    sizes = [4, 5, 9, 28, 33, 64, 97, 224, 500, 2000]
    assert all(36 <= hog_dimensions(h, w) <= 4000 for h in sizes for w in sizes)
    with pytest.raises(InvalidInput, match="at least 4 x 4"):
        cell_size(3, 40)


def test_flat_images_are_zeros_and_finite():
    integers, finite = Embedder(HOG, probe=None).embed(np.full((2, 28, 28, 1), 9, dtype=np.uint8))
    assert finite.all()
    assert not integers.any()


def test_nothing_in_is_nothing_out():
    integers, finite = Embedder(HOG, probe=None).embed(np.zeros((0, 28, 28, 1), dtype=np.uint8))
    assert integers.shape == (0, 1296)
    assert finite.shape == (0,)


@pytest.mark.realdata
@pytest.mark.slow
def test_integer_votes_agree_with_float_votes_on_mnist(realdata_root):
    from torchvision.datasets import MNIST

    from labelwall.teacher.features.hog import hog_features

    data = MNIST(realdata_root, train=True)
    raw = hog_features(data.data.numpy()[:4000, :, :, None], 1)
    labels = data.targets.numpy()[:4000]
    unit = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    integers = quantise(raw, (), hog_scale(1296))[0].astype(np.float64)
    exact, rounded = (_plurality(f[:3000], labels, f[3000:], 40) for f in (unit, integers))
    assert (exact == rounded).mean() >= 0.99
    assert (rounded == labels[3000:]).mean() >= 0.9


def _plurality(features: np.ndarray, labels: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    distance = (features**2).sum(axis=1) - 2 * queries @ features.T
    nearest = [labels[np.argsort(row)[:k]] for row in distance]
    return np.array([np.bincount(found, minlength=10).argmax() for found in nearest])
