"""PATE's networks: one vote a record, each trained alone, storage bound to their rows."""

import stat
from dataclasses import replace

import numpy as np
import pytest
import torch

from labelwall.teacher.classifiers import cnn_ensemble
from labelwall.teacher.classifiers.cnn_ensemble import CnnEnsemble
from labelwall.teacher.classifiers.linear_ensemble import KEY, shard_numbers
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.mechanisms.votes import Gnmax
from labelwall.teacher.records.embedding_cache import NETWORKS, forget
from labelwall.teacher.records.private_records import Records
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import ExtractorSpec, Queries
from tests.make import plan_of, teach
from tests.seeded_noise import SeededNoise

CLASSES, SECRET, SHAPE = 3, bytes(range(32)), (8, 9, 1)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(cnn_ensemble, "STEPS", 6)


def images(n, seed=0):
    """Noise with a bright column for each class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n)
    pixels = rng.integers(0, 90, (n, *SHAPE))
    pixels[np.arange(n), :, 3 * labels] += 150
    return Records(pixels.astype(np.uint8), labels, rng.permutation(10 * n)[:n])


def ensemble(records, folder, **options):
    folder.mkdir(exist_ok=True)
    fields = {"num_classes": CLASSES, "teachers": 5, "key": SECRET, "directory": folder}
    return CnnEnsemble(records, **fields | options)


def names_in(folder):
    return {path.name for path in folder.iterdir()}


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def test_a_record_changes_its_own_classifier_alone(tmp_path):
    records, queries = images(40), images(60, seed=1).inputs
    whole = ensemble(records, tmp_path / "whole")
    for left_out in (0, 39):
        others = np.delete(np.arange(40), left_out)
        rest = ensemble(records.take(others), tmp_path / f"{left_out}")
        changed = [not same(a, b) for a, b in zip(whole._weights, rest._weights, strict=True)]
        own = shard_numbers(records.ids[[left_out]], SECRET, 5)
        assert np.flatnonzero(changed).tolist() == own.tolist()
        difference = whole.votes(queries) - rest.votes(queries)
        assert (np.abs(difference).sum(axis=1) <= 2).all()
        assert (difference.sum(axis=1) == 0).all()


def test_the_order_of_records_and_other_processes_change_no_bit(tmp_path, monkeypatch):
    monkeypatch.undo()  # a process of its own would not know of fewer steps
    records = images(40)
    shuffled = records.take(np.random.default_rng(1).permutation(40))
    one, two = ensemble(records, tmp_path / "a"), ensemble(shuffled, tmp_path / "b")
    for other in (two, ensemble(records, tmp_path / "c", workers=2)):
        assert all(same(a, b) for a, b in zip(one._weights, other._weights, strict=True))


def test_seeds_are_independent_of_one_another_and_secret():
    keys = SECRET, bytes(32)
    jobs = [job for key in keys for _, job in cnn_ensemble._jobs(images(3), CLASSES, 4, key)]
    starts = [cnn_ensemble._uniform(seed, 20_000) for seed, *_ in jobs]
    # seven standard deviations; the numbers are fixed by the keys above
    assert np.abs(np.corrcoef(starts) - np.eye(8)).max() < 0.05
    assert np.abs(np.mean(starts, axis=1) - 0.5).max() < 0.02
    assert 0 <= np.min(starts) < np.max(starts) < 1


def test_networks_learn(tmp_path, monkeypatch):
    monkeypatch.setattr(cnn_ensemble, "STEPS", 40)
    asked = images(100, seed=2)
    votes = ensemble(images(150), tmp_path, teachers=3).votes(asked.inputs)
    assert (votes.sum(axis=1) == 3).all()
    assert (votes.argmax(axis=1) == asked.labels).mean() > 0.9


def test_an_empty_shard_votes_for_class_0(tmp_path):
    nobody = ensemble(images(4).take(np.arange(0)), tmp_path)
    assert (nobody.votes(images(300).inputs) == [5, 0, 0]).all()


def test_a_killed_training_goes_on_and_nothing_is_trained_twice(tmp_path, monkeypatch):
    trained, train_one = [], cnn_ensemble.train_one

    def counted(seed, *rest):
        trained.append(seed)
        return train_one(seed, *rest)

    def kill(done, total):
        if done == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(cnn_ensemble, "train_one", counted)
    records, folder = images(40), tmp_path / NETWORKS
    jobs = list(cnn_ensemble._jobs(records, CLASSES, 5, SECRET))
    names, seeds = [folder / name for name, _ in jobs], [seed for _, (seed, *_) in jobs]
    with pytest.raises(KeyboardInterrupt):
        ensemble(records, tmp_path, progress=kill)
    assert set(folder.iterdir()) == set(names[:2])
    (folder / "5-9.npz.part").write_bytes(b"half a file")
    trained.clear()
    whole = ensemble(records, tmp_path)
    assert trained == seeds[2:]
    assert not list(folder.glob("*.part"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    again = ensemble(records, tmp_path)
    assert trained == seeds[2:]
    assert all(same(a, b) for a, b in zip(whole._weights, again._weights, strict=True))

    # without a record its shard's network is deleted before anything else, and it alone is trained
    fewer, before = records.take(np.arange(39)), set(folder.iterdir())
    own = int(shard_numbers(records.ids[[39]], SECRET, 5)[0])
    monkeypatch.setattr(cnn_ensemble, "train_one", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ensemble(fewer, tmp_path)
    (deleted,) = before - set(folder.iterdir())
    assert deleted == names[own]
    trained.clear()
    monkeypatch.setattr(cnn_ensemble, "train_one", counted)
    ensemble(fewer, tmp_path)
    assert trained == [seeds[own]]


def test_feature_vectors_and_tiny_images_are_refused(tmp_path):
    for inputs in (np.zeros((2, 5), dtype=np.float32), np.zeros((2, 7, 9, 1), dtype=np.uint8)):
        with pytest.raises(InvalidInput, match=r"mechanism\.classifier"):
            ensemble(Records(inputs, np.arange(2), np.arange(2)), tmp_path)


def test_a_teacher_answers_by_its_networks_which_are_of_the_records_as_they_are(
    tmp_path, monkeypatch
):
    """sigma = 0.01: the noise is zero but with probability below e^-4000. Another extractor trains
    nothing anew; of a removed record nothing stays."""
    records, queries, more = images(60), images(40, seed=3).inputs, images(30, seed=4).inputs
    # under a random key some network may waver between two classes, by batch
    (tmp_path / KEY).write_bytes(SECRET)
    plan = plan_of(Gnmax(teachers=5, sigma_vote=0.01, classifier="cnn"), 400, 400)
    hog = ExtractorSpec("hog", SHAPE, CLASSES)
    asked = teach(tmp_path, plan, records, hog, SeededNoise(0))
    with monkeypatch.context() as patched:
        patched.setattr(cnn_ensemble, "train_one", lambda *_: 1 / 0)
        asked.use_extractor(replace(hog, scale=2.0))
    for place, known, batch in (
        ("all", records, queries),
        ("fewer", records.take(np.arange(1, 60)), more),
    ):
        own = tmp_path / place
        plurality = ensemble(known, own).votes(batch).argmax(axis=1)
        np.testing.assert_array_equal(asked.answer(Queries(batch)).labels, plurality)
        assert names_in(tmp_path / NETWORKS) == names_in(own / NETWORKS)
        asked.remove(records.ids[:1])
    forget(records, tmp_path, tmp_path / "nowhere")
    assert not names_in(tmp_path / NETWORKS)


def test_queries_keep_their_images_when_a_part_is_selected(tmp_path):
    records, queries = images(40), images(30, seed=5).inputs
    networks, rows = ensemble(records, tmp_path), [7, 3, 29]
    index = ExactIndex(np.zeros((1, 1), dtype=np.int8), np.zeros(1, dtype=np.int64))
    blank = np.zeros((30, 1), dtype=np.int8)
    voters = Voters(index, records.labels, CLASSES, blank, networks={5: networks}, inputs=queries)
    votes = Gnmax(teachers=5, classifier="cnn").tally(voters.select(rows))
    np.testing.assert_array_equal(votes, networks.votes(queries[rows]))
