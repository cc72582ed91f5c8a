"""Histograms of gradients are scikit-image's to the last bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from skimage.feature import hog

from labelwall.wall.features.network import Network
from labelwall.wall.hog import _gradients, cell_size, hog_features
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.networks import build, to_safetensors
from labelwall.wall.preprocessing import unit_scale

SHAPES = st.tuples(st.integers(4, 40), st.integers(4, 40), st.sampled_from([1, 2, 3]))
WEIGHTS = to_safetensors(build("hog", input_shape=(16, 16, 1), num_classes=2))


def same(images):
    """Whether the features have scikit-image's bytes."""
    colour = images.shape[3] > 1
    size = {"pixels_per_cell": cell_size(*images.shape[1:3]), "cells_per_block": (2, 2)}
    options = {"orientations": 9, "channel_axis": -1 if colour else None, **size}
    by_image = [hog(image if colour else image[..., 0], **options) for image in images]
    ours, reference = hog_features(images), np.array(by_image)
    return ours.dtype == reference.dtype and ours.tobytes() == reference.tobytes()


@given(SHAPES.flatmap(lambda shape: arrays(np.uint8, (2, *shape))))
@settings(max_examples=40, deadline=None)
def test_any_image_of_any_size(images):
    assert same(images)


@given(SHAPES.flatmap(lambda shape: arrays(np.uint8, (2, *shape))))
@settings(max_examples=40, deadline=None)
def test_the_network_has_the_same_features_but_for_rounding(images):
    network = build("hog", input_shape=images.shape[1:], num_classes=2)
    features = network.features(unit_scale(images)).numpy()
    np.testing.assert_allclose(features, hog_features(images), rtol=0, atol=1e-5)


def test_its_graph_knows_blank_images():
    """ONNX leaves out what is added to a length of 0."""
    images = np.zeros((3, 16, 16, 1), dtype=np.uint8)
    images[1, 4:, 8:] = 200
    network = Network(ExtractorSpec("hog", (16, 16, 1), 2, WEIGHTS, (0.0,), (1.0,)), "cpu")
    np.testing.assert_allclose(network(images), hog_features(images), rtol=0, atol=1e-6)


def test_every_gradient():
    """In the middle of an image of 4 x 4 pixels, with another gradient in the pixel beside it."""
    steps = np.arange(-255, 256, 15)
    down, across = (grid.ravel() for grid in np.meshgrid(steps, steps))
    images = np.zeros((len(down), 4, 4, 1), dtype=np.uint8)
    for step, (low, high) in ((down, ((0, 1), (2, 1))), (across, ((1, 0), (1, 2)))):
        images[:, *low, 0], images[:, *high, 0] = np.maximum(-step, 0), np.maximum(step, 0)
    assert same(images)


def test_no_orientation_is_near_the_edge_of_a_bin():
    """The least distance, in degrees, is far above rounding, so no machine moves one."""
    _, bins = _gradients()
    down, across = np.mgrid[-255:256, -255:256]
    degrees = np.rad2deg(np.arctan2(down, across).astype(np.longdouble)) % 180
    edges = abs(degrees / 20 - np.rint(degrees / 20))
    assert edges[down != 0].min() > 1e-6
    assert np.array_equal(bins[down != 0], (degrees // 20)[down != 0])
    assert not bins[down == 0].any()


@pytest.mark.realdata
@pytest.mark.slow
def test_all_of_mnist(realdata_root):
    from torchvision import datasets

    images = datasets.MNIST(realdata_root, train=True).data.numpy()[..., None]
    assert all(same(images[start : start + 1000]) for start in range(0, len(images), 1000))
