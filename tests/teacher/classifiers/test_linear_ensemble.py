"""PATE's teachers: shards by keyed hash, one classifier a shard, one vote a record can move."""

import hashlib
import hmac
import stat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.linear_model import Ridge

from labelwall.teacher.classifiers.linear_ensemble import (
    KEY,
    RIDGE,
    fit,
    shard_key,
    shard_numbers,
    train_ensemble,
)
from labelwall.wall.errors import InvalidInput

CLASSES, D, SECRET = 3, 5, bytes(range(32))
few = st.sampled_from([-63, -1, 0, 1, 63])


def data(n, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n)
    x = np.clip(rng.normal(size=(n, D)) * 12 + 30 * np.eye(CLASSES, D)[labels], -63, 63)
    return np.rint(x).astype(np.int8), labels, rng.permutation(10 * n)[:n]


def ensemble(features, labels, ids, teachers=7):
    return train_ensemble(features, labels, ids, num_classes=CLASSES, teachers=teachers, key=SECRET)


def test_shards_are_the_keyed_hash_of_the_id_and_of_nothing_else():
    ids, expected = np.array([0, 7, -5, 2**62]), []
    for i in ids.tolist():
        digest = hmac.new(SECRET, i.to_bytes(8, "little", signed=True), hashlib.sha256).digest()
        expected.append(int.from_bytes(digest[:8], "little") % 9)
    assert shard_numbers(ids, SECRET, 9).tolist() == expected
    many = np.arange(9000)
    assert (shard_numbers(many, SECRET, 9) != shard_numbers(many, bytes(32), 9)).mean() > 0.8
    assert np.bincount(shard_numbers(many, SECRET, 9), minlength=9).min() > 850  # about 1,000 each
    for teachers in (0, 10_001):
        with pytest.raises(InvalidInput, match="teachers"):
            shard_numbers(ids, SECRET, teachers)


@settings(max_examples=40)
@given(st.data())
def test_a_record_moves_one_vote_at_most(data):
    n, teachers = data.draw(st.integers(1, 10)), data.draw(st.integers(1, 4))
    features = data.draw(arrays(np.int8, (n, 2), elements=few))
    labels = data.draw(arrays(np.int64, n, elements=st.integers(0, CLASSES - 1)))
    queries = data.draw(arrays(np.int8, (4, 2), elements=few))
    ids, left_out = np.arange(n), data.draw(st.integers(0, n - 1))
    whole = ensemble(features, labels, ids, teachers)
    rest = ensemble(*(np.delete(a, left_out, 0) for a in (features, labels, ids)), teachers)
    difference = whole.votes(queries) - rest.votes(queries)
    assert (np.abs(difference).sum(axis=1) <= 2).all()  # nothing, or e_a - e_b
    assert (difference.sum(axis=1) == 0).all()
    assert (np.abs(whole.votes(queries).max(axis=1) - rest.votes(queries).max(axis=1)) <= 1).all()
    own = shard_numbers(ids[[left_out]], SECRET, teachers)[0]
    others = np.arange(teachers) != own
    np.testing.assert_array_equal(whole.weights[others], rest.weights[others])  # to the last bit


def test_the_order_of_records_changes_no_bit():
    features, labels, ids = data(80)
    order = np.random.default_rng(1).permutation(80)
    shuffled = ensemble(features[order], labels[order], ids[order])
    np.testing.assert_array_equal(ensemble(features, labels, ids).weights, shuffled.weights)


def test_a_classifier_is_scikit_learns_ridge_regression():
    features, labels, _ = data(60)
    rows = np.hstack([features / 63, np.ones((60, 1))])
    expected = Ridge(alpha=RIDGE, fit_intercept=False).fit(rows, np.eye(CLASSES)[labels]).coef_.T
    np.testing.assert_allclose(fit(features, labels, CLASSES), expected, atol=1e-5)


def test_votes_count_every_classifier_and_an_empty_shard_votes_for_class_0():
    features, labels, ids = data(30)
    queries = data(6, seed=2)[0]
    many = ensemble(features, labels, ids, teachers=200)  # most shards are empty
    votes = many.votes(queries)
    assert (votes.sum(axis=1) == 200).all()
    empty = 200 - len(np.unique(shard_numbers(ids, SECRET, 200)))
    assert (votes[:, 0] >= empty).all()
    nobody = ensemble(features[:0], labels[:0], ids[:0], teachers=4)
    assert (nobody.votes(queries) == np.eye(CLASSES, dtype=int)[[0] * 6] * 4).all()


def test_the_key_is_the_custodians_secret(tmp_path):
    key = shard_key(tmp_path)
    assert (len(key), shard_key(tmp_path)) == (32, key)
    assert stat.S_IMODE((tmp_path / KEY).stat().st_mode) == 0o600
    (tmp_path / "other").mkdir()
    assert shard_key(tmp_path / "other") != key
    (tmp_path / KEY).write_bytes(b"short")
    with pytest.raises(InvalidInput):
        shard_key(tmp_path)
