"""The cache of private features: it saves work, follows removals, and survives damage."""

import os
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.records import embedding_cache
from labelwall.teacher.records.embedding_cache import (
    Embedding,
    PlainFeatures,
    cache_name,
    forget,
)
from labelwall.teacher.records.private_records import Records
from labelwall.wall.features.embedder import Embedder
from labelwall.wall.messages import ExtractorSpec

SPEC = ExtractorSpec("raw", (3,), 2)
RECORDS = Records(
    np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32),
    np.arange(6) % 2,
    np.arange(6) + 10,
)


class CountingEmbedder(Embedder):
    """Counts the rows whose features, before axes, it computes."""

    rows = 0

    def features(self, inputs, progress=None):
        self.rows += len(inputs)
        return super().features(inputs, progress)


def embedded(folder, records=RECORDS, device="cpu"):
    """(features, how many rows were computed)."""
    embedder = CountingEmbedder(SPEC)
    embedder.device = device
    return finished(folder, records, embedder, PlainFeatures()), embedder.rows


def finished(folder, records, embedder, plain):
    embedding = Embedding(folder, records, embedder, plain, lambda done, total: None)
    assert embedding.advance()
    return embedding.result()[0]


def test_what_is_stored_is_not_computed_again(tmp_path):
    features, computed = embedded(tmp_path, RECORDS.take(slice(4)))
    assert computed == 4
    everything, computed = embedded(tmp_path)
    assert computed == 2
    np.testing.assert_array_equal(everything[:4], features)
    fresh, computed = embedded(tmp_path)
    assert computed == 0
    np.testing.assert_array_equal(fresh, everything)


def stored_ids(path):
    return np.load(path)["ids"].tolist() if path.exists() else []


def test_a_removed_record_is_in_no_cache_and_the_others_stay(tmp_path):
    """On another type of device features are other ones, in a cache of their own."""
    assert [embedded(tmp_path, device=on)[1] for on in ("cpu", "cuda") * 2] == [6, 6, 0, 0]
    paths = [tmp_path / cache_name(SPEC, on) for on in ("cpu", "cuda")]
    for count in (6, 5):
        forget(RECORDS.take(slice(count)), tmp_path)
        assert [stored_ids(path) for path in paths] == [list(range(10, 10 + count))] * 2


@pytest.mark.parametrize("damage", ["bits", "cut", "empty", "text", "other arrays", "other shape"])
def test_a_damaged_cache_is_made_again_and_can_be_removed(tmp_path, damage):
    """A flipped bit anywhere in the file stops neither a query nor the removal of records."""
    features, _ = embedded(tmp_path)
    path = tmp_path / cache_name(SPEC, "cpu")
    whole = path.read_bytes()
    versions = {"cut": [whole[: len(whole) // 2]], "empty": [b""], "text": [b"text" * 99]}
    versions["bits"] = [
        whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
        for at in range(0, len(whole), 7)
    ]
    for name, arrays in {
        "other arrays": {"x": np.zeros(3)},
        "other shape": {"digests": np.zeros((6, 16), np.uint8), "features": np.zeros((5, 3))},
    }.items():
        np.savez(tmp_path / "other.npz", **({"finite": np.ones(6, bool)} | arrays))
        versions[name] = [(tmp_path / "other.npz").read_bytes()]
        (tmp_path / "other.npz").unlink()
    for content in versions[damage]:
        path.write_bytes(content)
        again, _ = embedded(tmp_path)
        np.testing.assert_array_equal(again, features)
        path.write_bytes(content)
        forget(RECORDS.take(slice(5)), tmp_path)
        assert 15 not in stored_ids(path)


def test_a_cache_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    events: list[str] = []
    replace = Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: events.append("fsync"))
    monkeypatch.setattr(
        Path, "replace", lambda self, to: (events.append("rename"), replace(self, to))[1]
    )
    embedded(tmp_path)
    assert events == ["fsync", "rename"]


@pytest.mark.parametrize(("most", "again"), [(1 << 20, (0, 1, 6)), (0, (5, 6, 6))])
def test_other_axes_need_no_pass_of_the_network_and_give_the_same_integers(
    tmp_path, monkeypatch, most, again
):
    """The last of six records changes before the third extractor; the fourth has another network.

    ``again``: how many rows each of the later extractors computes, if so many bytes are kept.
    """
    monkeypatch.setattr(embedding_cache, "MAX_PLAIN_BYTES", most)
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (6, 16, 16, 1), dtype=np.uint8)
    first = Embedder(ExtractorSpec("hog", (16, 16, 1), 2)).features(images)
    width, plain = first.shape[1], PlainFeatures()

    def on_axes(seed, num_classes=2):
        axes = np.random.default_rng(seed).integers(-9, 9, (width, 4)).astype("<i2").tobytes()
        center = tuple(first.mean(axis=0).tolist())
        return ExtractorSpec(
            "hog", (16, 16, 1), num_classes, center=center, scale=1.0 + seed, axes=axes
        )

    records = Records(images, np.arange(6) % 2, np.arange(6))
    changed = Records(np.r_[images[:5], ~images[5:]], records.labels, records.ids)
    counts = []
    for spec, held in (
        (on_axes(1), records),
        (on_axes(2), records.take(slice(5))),
        (on_axes(3), changed),
        (on_axes(4, num_classes=3), changed),
    ):
        embedder = CountingEmbedder(spec)
        features = finished(tmp_path, held, embedder, plain)
        counts.append(embedder.rows)
        np.testing.assert_array_equal(features, Embedder(spec).embed(held.inputs)[0])
    assert tuple(counts) == (6, *again)
