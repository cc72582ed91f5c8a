"""Features of the first round; which public rows are asked."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelwall.student.asking import features
from labelwall.student.asking.features import (
    PublicFeatures,
    box_extractor,
    first_extractor,
    linear_power,
    principal_axes,
    whitened,
)
from labelwall.student.asking.matrix_round import cluster
from labelwall.student.asking.query_selection import TYPICAL_SHARE, choose_queries, typical_rows
from labelwall.student.public_settings import FirstFeatures
from labelwall.wall.computing import Computing
from labelwall.wall.datasets.data_config import Task
from labelwall.wall.errors import InvalidInput
from labelwall.wall.features.embedder import Embedder
from labelwall.wall.label_kinds import ClassLabels
from labelwall.wall.messages import ExtractorSpec
from tests.make import bars


def uneven(n: int, seed: int = 0) -> np.ndarray:
    """float32 [n, 6] around 7: one direction 50 times as wide as four, one of no spread."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(np.random.default_rng(9).normal(size=(6, 6)))[0]
    return (rng.normal(size=(n, 6)) @ np.diag([50.0, 1, 1, 1, 1, 0]) @ turn + 7).astype(np.float32)


def on_axes(rows: np.ndarray, whiten: int) -> np.ndarray:
    """int8 [n, whiten] of the rows that the axes were learned from."""
    spec = whitened(ExtractorSpec("raw", rows.shape[1:], 3), whiten, lambda _: rows)
    return Embedder(spec).embed(rows)[0]


def test_axes_give_every_direction_the_same_spread() -> None:
    rows = uneven(500)
    mean, axes = principal_axes(rows, 5)
    np.testing.assert_allclose(mean, rows.mean(axis=0), rtol=1e-6)
    assert abs(axes).max() == 32767
    covariance = np.cov((rows - mean) @ axes, rowvar=False)
    assert abs(covariance / covariance.diagonal().mean() - np.eye(5)).max() < 0.02
    scattered = np.concatenate([rows, np.full((3, 6), np.nan, dtype=np.float32)])
    for found, expected in zip(principal_axes(scattered, 5), (mean, axes), strict=True):
        assert np.array_equal(found, expected)


def test_embedded_rows_have_no_main_direction() -> None:
    integers, plain = (on_axes(uneven(500), axes)[:, :5].astype(float) for axes in (5, 0))
    assert np.linalg.cond(np.cov(integers, rowvar=False)) < 1.5
    assert np.linalg.cond(np.cov(plain, rowvar=False)) > 10
    assert np.quantile(abs(integers), 0.5) > 10  # of 63: fine enough
    assert (abs(integers) == 63).mean() < 0.02


@pytest.mark.parametrize(("rows", "kept"), [(500, 6), (3, 3), (1, 1), (0, 1)])
def test_more_axes_than_directions_are_refused(rows: int, kept: int) -> None:
    assert principal_axes(uneven(rows), kept)[1].shape[1] < kept
    with pytest.raises(InvalidInput, match="whiten"):
        on_axes(uneven(rows), kept)


@pytest.mark.parametrize(
    ("slope", "power"), [(0.0, 0.0), (0.4, 0.0), (0.6, 0.25), (0.9, 0.5), (3.0, 0.5)]
)
def test_a_linear_model_whitens_less_where_axes_are_alike(slope: float, power: float) -> None:
    """Variances that fall like rank to the power -slope, the later ones otherwise."""
    ranks = np.arange(1.0, 101)
    variances = ranks**-slope
    variances[64:] = variances[63]
    assert linear_power(np.sqrt(variances)) == pytest.approx(power, abs=1e-9)
    assert linear_power(np.sqrt(variances[:1])) == 0.5


def test_each_side_of_the_box_has_its_own_scale() -> None:
    spec = box_extractor([[0.0, 2.0], [-1.0, 5.0]], Task(ClassLabels(("a", "b")), (2,)))
    assert (spec.mean, spec.std) == ((1.0, 2.0), (1.0, 3.0))
    with pytest.raises(InvalidInput, match="one side, or 3"):
        box_extractor([[0.0, 2.0], [-1.0, 5.0]], Task(ClassLabels(("a", "b")), (3,)))


def test_clusters_of_public_rows() -> None:
    rng = np.random.default_rng(0)
    middles = np.array([[40, 0], [-40, 0], [0, 50]])
    features = (np.repeat(middles, 30, axis=0) + rng.integers(-3, 4, (90, 2))).astype(np.int8)
    centers = cluster(features, 3, seed=1)
    assert centers.dtype == np.int8
    assert sorted(np.rint(centers / 10).astype(int).tolist()) == [[-4, 0], [0, 5], [4, 0]]
    np.testing.assert_array_equal(centers, cluster(features, 3, seed=1))
    many = cluster((50 * np.random.default_rng(0).integers(-1, 2, (80, 9))).astype(np.int8), 40, 0)
    assert np.abs(many.astype(int)).max() <= 63
    # Fewer places than cells
    assert cluster(np.ones((8, 2), dtype=np.int8), 5, seed=0).tolist() == [[1, 1]] * 5
    with pytest.raises(InvalidInput, match=r"mechanism\.centroids"):
        cluster(features[:4], 5, seed=1)


def test_fourier_features_have_the_gaussian_kernel() -> None:
    """Products of two rows' features, times 2 over their number, on average; in every run alike."""
    rng, task = np.random.default_rng(0), Task(ClassLabels(("a", "b")), (6,))
    spec = first_extractor(FirstFeatures(features="fourier"), task)
    assert spec.sha256() == first_extractor(FirstFeatures(features="fourier"), task).sha256()
    rows = rng.normal(size=(40, 6)).astype(np.float32)
    features = Embedder(spec).features(rows)
    products = 2 * features @ features.T / features.shape[1]
    squares = ((rows[:, None] - rows) ** 2).sum(axis=2)
    expected = np.exp(-squares / 2 / (0.5 * (2 * 6) ** 0.5) ** 2)
    assert np.abs(products - expected).max() < 5 / 1024**0.5
    with pytest.raises(InvalidInput, match="bins or trees for feature vectors"):
        first_extractor(FirstFeatures(features="fourier"), Task(task.labels, (8, 8, 1)))


def test_bins_say_where_an_entry_lies_among_the_public_rows() -> None:
    """One bin a column, of its own value or of a quantile; a row is read by itself."""
    rng, task = np.random.default_rng(0), Task(ClassLabels(("a", "b")), (3,))
    rows = rng.normal(size=(500, 3)).astype(np.float32)
    rows[:, 1], rows[:, 2] = rng.integers(0, 5, 500) ** 2, rng.random(500) < 0.5
    spec = first_extractor(FirstFeatures(features="bins"), task, rows)
    features = Embedder(spec).features(rows)
    np.testing.assert_array_equal(features[:, :3], rows)
    measured, few, binary = np.split(features[:, 3:], (16, 21), axis=1)
    assert (np.count_nonzero(measured, axis=1) == 1).all()
    assert np.bincount((measured > 0).argmax(axis=1)).tolist() == pytest.approx([31] * 16, abs=1)
    np.testing.assert_array_equal((few > 0).argmax(axis=1), np.sqrt(rows[:, 1]))
    assert not binary.any()  # the entry says it
    for bins in (measured, few):
        assert bins.var(axis=0).sum() == pytest.approx(1.0, abs=1e-5)
    alone = np.concatenate([Embedder(spec).features(row[None]) for row in rows[:9]])
    np.testing.assert_array_equal(alone, features[:9])
    far = Embedder(spec).features(np.array([[-1e30, 7.0, 0.0], [1e30, 99.0, 1.0]], np.float32))
    assert (np.count_nonzero(far[:, 3:], axis=1) == 2).all()
    lost = Embedder(spec).embed(np.array([[np.nan, 0.0, 0.0]], dtype=np.float32))
    assert not np.any(lost[0])
    assert not np.any(lost[1])
    with pytest.raises(InvalidInput, match="public rows"):
        first_extractor(FirstFeatures(features="bins"), task)


def test_public_rows_are_embedded_once_by_their_content(monkeypatch) -> None:
    """Also for another holder of equal rows; another network or other rows are computed."""
    calls = list[int]()

    class Counted(Embedder):
        def features(self, inputs: np.ndarray, progress: object = None) -> np.ndarray:
            calls.append(len(inputs))
            return inputs

    monkeypatch.setattr(features, "Embedder", Counted)
    rows, spec = uneven(9, seed=4), ExtractorSpec("raw", (6,), 3)
    for asked in (rows, rows.copy(), rows[:5], rows):
        held = PublicFeatures(Computing(), {"public": asked}, lambda *_: None)
        np.testing.assert_array_equal(held.plain(replace(spec, scale=float(len(asked)))), asked)
    assert calls == [9, 5]


def test_a_network_computes_features_of_public_images_once_for_all_runs(
    tmp_path: Path, monkeypatch
) -> None:
    """By content, in the user's cache; a damaged file, or no place for it, costs time alone."""
    calls = list[int]()

    class Counted:
        def __init__(self, *_: object, **settings: object) -> None:
            pass

        def features(self, inputs: np.ndarray, progress: object = None) -> np.ndarray:
            calls.append(len(inputs))
            return inputs.reshape(len(inputs), -1)[:, :3].astype(np.float32)

    def asked(images: np.ndarray, spec: ExtractorSpec) -> None:
        features._kept.clear()  # as in another process
        own = features.plain_features(Computing(), spec, images, lambda *_: None)
        np.testing.assert_array_equal(own, images.reshape(len(images), -1)[:, :3])

    monkeypatch.setattr(features, "Embedder", Counted)
    monkeypatch.setattr(features, "STORED", 2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    images, network = bars(7), ExtractorSpec("small_cnn", (28, 28, 1), 3, weights=b"some")
    for spec in (network, replace(network, scale=2.0), replace(network, weights=b"other")):
        asked(images, spec)
        asked(images.copy(), spec)
    assert calls == [7, 7]
    asked(images[:5], network)
    assert calls == [7, 7, 5]
    folder = tmp_path / "cache" / "labelwall" / "features"
    assert len(list(folder.iterdir())) == 2
    for path, left in zip(sorted(folder.iterdir()), (0, 90), strict=True):
        path.write_bytes(path.read_bytes()[:left])
    asked(images[:5], network)
    asked(images, replace(network, weights=b"other"))
    asked(images[:4], ExtractorSpec("hog", (28, 28, 1), 3))
    assert calls == [7, 7, 5, 5, 7, 4]
    assert len(list(folder.iterdir())) == 2
    monkeypatch.setenv("XDG_CACHE_HOME", str(next(folder.iterdir())))  # a file
    asked(images[:3], network)
    assert calls[-1] == 3


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
def test_a_round_repeats_its_choice_and_another_seed_or_round_makes_another(features) -> None:
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
