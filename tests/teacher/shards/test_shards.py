"""Shards answer as one process: for every mechanism, number of shards, update, interruption."""

import tracemalloc
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from labelwall.teacher.mechanisms.votes import Gnmax
from labelwall.teacher.records.private_records import Records, stream_records
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.shards import shards as shards_module
from labelwall.teacher.shards import worker as worker_module
from labelwall.teacher.shards.pools import ShardPool
from labelwall.teacher.shards.scale_config import ScaleConfig
from labelwall.teacher.shards.worker import ShardFailed, journal
from labelwall.wall.datasets.data_config import DataConfig, Task
from labelwall.wall.errors import InvalidInput, TeacherFailed
from labelwall.wall.features.embedder import Embedder
from labelwall.wall.guarantee import UNITS
from labelwall.wall.label_kinds import ClassLabels, numbered_space, unpack
from labelwall.wall.messages import ExtractorSpec, Queries
from tests.teacher.shards import tiny

COUNTS = (1, 2, 5, 16)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("n", "m"), [(300, 0), (300, 7), (300, 1000), (3, 7), (4, 7), (7, 7)])
def test_merged_lists_are_those_of_one_index(tmp_path, count, n, m):
    records = tiny.records(n, 3)
    index = tiny.index_of(tmp_path / "d", records, count)
    features, finite = Embedder(tiny.RAW).embed(records.inputs)
    order = np.flatnonzero(finite)[np.argsort(records.ids[finite])]
    whole = ExactIndex(features[order], records.ids[order])
    asked = np.random.default_rng(4).integers(-20, 21, (9, tiny.DIMENSIONS)).astype(np.int8)
    rows = index.prefix(asked, m)
    assert rows.shape == (9, min(m, n - 3))
    np.testing.assert_array_equal(index.ids[rows], whole.ids[whole.prefix(asked, m)])


def test_lists_are_lengthened_where_one_shard_holds_all_that_is_near(tmp_path, monkeypatch):
    """A shard's share of the list is too few here: ids follow the distance, and shards the ids."""
    monkeypatch.setattr(shards_module, "shard_numbers", lambda ids, key, count: ids * count // 2000)
    angle, ids = np.arange(2000) / 1000, np.arange(2000)
    x = np.stack([np.cos(angle), np.sin(angle), np.zeros(2000)], axis=1).astype(np.float32)
    index = tiny.index_of(tmp_path / "d", Records(x, np.zeros(2000, dtype=np.int64), ids), 5)
    query = np.array([[63, 0, 0]], dtype=np.int8)
    np.testing.assert_array_equal(index.prefix(query, 300)[0], np.arange(300))


def test_counts_are_of_the_shards_own_labels(tmp_path):
    index = tiny.index_of(tmp_path / "d", tiny.records(50), 2)
    with pytest.raises(ValueError, match="their own"):
        index.total(lambda part, labels: labels, index.labels.copy())


def test_labels_are_stored_alike_whichever_the_records_have(tmp_path):
    """Forty attributes fill 40 bits, and a single record with the last one changes no dtype."""
    found = []
    for folder, last in (("a", 1), ("b", (1 << 40) - 1)):
        labels = np.array([0, 1, 0, last])
        rows = Records(np.eye(4, tiny.DIMENSIONS, dtype=np.float32), labels, np.arange(4))
        on_disk = tiny.on_disk(tmp_path / folder, tiny.streamed(rows), 2)
        on_disk._space = numbered_space("attributes", 40)
        index = on_disk.prepare(tiny.RAW).index
        np.testing.assert_array_equal(index.labels, labels)
        np.testing.assert_array_equal(unpack(index.labels, 40)[3], unpack(labels, 40)[3])
        found.append(index.labels.dtype)
    assert found == [np.int64, np.int64]
    assert tiny.index_of(tmp_path / "c", tiny.records(), 2).labels.dtype == np.int8


# --- ingestion, features, updates ---


@pytest.mark.parametrize("step", [1, 2, 5])
def test_an_interrupted_start_resumes(tmp_path, monkeypatch, step):
    monkeypatch.setattr(worker_module, "BLOCK", 37)
    records = tiny.records()
    expected = tiny.asked(tiny.ready(tmp_path / "whole", "private_knn", records), "private_knn")
    blocks, killed = [0], 0
    append = shards_module.append

    def killing(*arguments):
        blocks[0] += 1
        if blocks[0] > step:
            raise KeyboardInterrupt
        append(*arguments)

    for module in (shards_module, worker_module):
        monkeypatch.setattr(module, "append", killing)
    while True:
        try:
            teacher = tiny.ready(tmp_path / "d", "private_knn", records, 3)
            break
        except KeyboardInterrupt:
            killed, blocks[0] = killed + 1, 0
    assert killed > 3
    assert tiny.asked(teacher, "private_knn") == expected


@pytest.mark.parametrize("step", [4, 10**6])
def test_an_interrupted_start_begins_anew_where_rows_have_other_places(tmp_path, monkeypatch, step):
    """Otherwise a record that leaves in between would take the place of another one for ever."""
    monkeypatch.setattr(worker_module, "BLOCK", 37)
    records, blocks = tiny.records(), [0]
    append, listing = shards_module.append, ["before"]
    finish = shards_module.finish

    def killing(*arguments):
        blocks[0] += 1
        if blocks[0] > step and listing == ["before"]:
            raise KeyboardInterrupt
        append(*arguments)

    def killing_later(folder):
        finish(folder)
        if listing == ["before"]:  # one of two is whole
            raise KeyboardInterrupt

    monkeypatch.setattr(shards_module, "append", killing)
    monkeypatch.setattr(shards_module, "finish", killing_later)

    def started(rows):
        disk = tiny.on_disk(tmp_path / "d", tiny.streamed(rows), 2)
        disk._source = lambda: listing[0]
        return disk.prepare(tiny.RAW).index

    with pytest.raises(KeyboardInterrupt):
        started(records)
    listing[0] = "after"
    others = records.take(np.arange(1, len(records.ids)))  # the first is gone
    whole = tiny.index_of(tmp_path / "whole", others, 2)
    assert started(others).ids.tolist() == whole.ids.tolist()


def peak_of(step):
    """Peak of the allocated bytes, without mapped files."""
    tracemalloc.start()
    try:
        step()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("n", [2048, 32_768])
def test_memory_is_that_of_blocks_whatever_the_number_of_rows(tmp_path, monkeypatch, n):
    """docs/scale.md's formula, for 4 blocks and for 64: of raw rows, and bytes for a record."""
    monkeypatch.setattr(worker_module, "BLOCK", 512)
    block, rng = 512 * 256 * 4, np.random.default_rng(0)
    tiny.index_of(tmp_path / "small", tiny.records(20), 2)  # imports are not measured
    path, x = tmp_path / "a.npz", rng.normal(size=(n, 256)).astype(np.float32)
    np.savez(path, private_x=x, private_y=np.arange(n) % 2)
    task = Task(ClassLabels(("a", "b")), (256,))
    config = DataConfig(source="arrays", path=str(path))
    rows = tiny.on_disk(tmp_path, partial(stream_records, config, task), 2, 256)
    assert peak_of(rows.records) < 5 * block
    spec = ExtractorSpec("raw", (256,), 2)
    peak = peak_of(lambda: rows.prepare(spec))
    assert peak < 12 * block + 60 * n


def test_rows_of_one_id_in_several_blocks_are_one_record(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_module, "BLOCK", 40)
    records = tiny.records(100)
    twice = records.joined(replace(records, inputs=-records.inputs))
    once, again = (
        tiny.asked(tiny.ready(tmp_path / name, "private_knn", rows, 3), "private_knn")
        for name, rows in (("once", records), ("twice", twice))
    )
    assert once == again


def test_pates_teachers_are_trained_without_a_removed_record_and_with_an_added_one(tmp_path):
    records, weights = tiny.records(60), []
    for count in (0, 3):
        teacher = tiny.ready(tmp_path / str(count), "gnmax", records, count)
        before = teacher._prepared.ensembles[7].weights
        teacher.remove(records.ids[4:5])
        teacher.add(Records(records.inputs[5:6] + 1, records.labels[5:6], np.array([10_000])))
        weights.append(teacher._prepared.ensembles[7].weights)
        assert 1 <= (before != weights[-1]).any(axis=(1, 2)).sum() <= 2
    np.testing.assert_array_equal(*weights)


def test_added_and_removed_records_count_as_in_one_process_and_leave_no_bytes(tmp_path):
    records, new, results = tiny.records(), tiny.records(30, seed=9), []
    new = Records(new.inputs[3:] + np.float32(0.25), new.labels[3:], np.arange(10_000, 10_027))
    gone = np.concatenate([records.ids[5:60], [10_003, 77_777]])
    for count in (0, 3):
        teacher = tiny.ready(tmp_path / str(count), "ind_knn", records, count)
        first = tiny.asked(teacher, "ind_knn")
        teacher.add(new)
        teacher.add(new)  # again: nothing
        some = np.array([10_003, records.ids[7], 55_555])
        assert teacher.present(some).tolist() == [True, True, False]
        teacher.remove(gone)
        with pytest.raises(InvalidInput, match="no present record"):
            teacher.add(Records(new.inputs[:1] + 1, new.labels[:1], new.ids[:1]))
        assert teacher.present(gone).tolist() == [False] * len(gone)
        again = teacher.answer(Queries(tiny.queries(30, 7)))
        reopened = tiny.ready(tmp_path / str(count), "ind_knn", records, count)
        last = reopened.answer(Queries(tiny.queries(30, 8)))
        later = [(answers.labels.tolist(), answers.receipt) for answers in (again, last)]
        results.append((first, later))
    assert results[0] == results[1]
    victim, others = new.inputs[3].tobytes(), new.inputs[4].tobytes()
    files = [path.read_bytes() for path in (tmp_path / "3").rglob("*.npy")]
    assert any(others in content for content in files)
    assert not any(victim in content for content in files)


def test_another_number_of_shards_leaves_no_copies_behind(tmp_path):
    for count in (3, 2):
        tiny.ready(tmp_path, "private_knn", tiny.records(), count)
    assert [path.name for path in tmp_path.glob("shards-*")] == ["shards-2"]
    folders = sorted((tmp_path / "shards-2").iterdir())
    assert sum(journal(folder / "rows").rows for folder in folders if folder.is_dir()) == 400
    # Without shards no copy is needed.
    tiny.teacher(tmp_path, "private_knn", tiny.records(), ScaleConfig()).records()
    assert not list(tmp_path.glob("shards-*"))


# --- failures ---


def test_a_shard_that_fails_fails_the_whole_batch_before_its_charge(tmp_path, monkeypatch):
    teacher = tiny.ready(tmp_path, "private_knn", tiny.records(), 3)
    nearest, calls = ExactIndex.nearest, [0]

    def failing(self, queries, m):
        calls[0] += 1
        if calls[0] == 2:
            raise RuntimeError(f"about a record: {queries}")
        return nearest(self, queries, m)

    monkeypatch.setattr(ExactIndex, "nearest", failing)
    with pytest.raises(TeacherFailed) as caught:
        teacher.answer(Queries(tiny.queries(10)))
    assert "record:" not in str(caught.value)
    # Only the shard's own log has the cause.
    assert "about a record" not in (tmp_path / "errors.log").read_text()
    assert teacher._ledger.state.spent == {}
    assert teacher._ledger.state.results == {}
    answers = teacher.answer(Queries(tiny.queries(10)))
    assert answers.receipt.charged["screen"] == 10
    assert teacher._ledger.state.spent[0, "screen"] == 10


@pytest.mark.parametrize("name", ["do", "_order", "__init__", "index", "unknown", ""])
def test_a_shard_does_only_what_is_listed(tmp_path, name):
    tiny.index_of(tmp_path / "d", tiny.records(50), 2)
    pool = ShardPool([tmp_path / "d" / "shards-2" / "0000"])
    with pytest.raises(ShardFailed):
        pool.ask(name, tiny.RAW.sha256())


def test_mechanisms_that_need_all_rows_are_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(
        tiny.MECHANISMS, "gnmax", Gnmax(teachers=5, sigma_vote=40.0, classifier="cnn")
    )
    with pytest.raises(InvalidInput, match=r"scale\.shards.*gnmax"):
        tiny.teacher(tmp_path, "gnmax", tiny.records(), ScaleConfig(shards=2))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"backend": "spark"}, "backend"),
        ({"backend": "ray"}, "shards"),
        ({"shards": -1}, "shards"),
        ({"shards": 10_001}, "shards"),
        ({"shards": 2, "ray_address": "h:1"}, "ray_address"),
        ({"backend": "ray", "shards": 2, "ray_address": "auto"}, "ray_address"),
        ({"backend": "ray", "shards": 2, "ray_address": "ray://h:1"}, "ray_address"),
        ({"threads": 0}, "threads"),
        *(({"gpus": gpus}, "gpus") for gpus in (0.0, -1.0, 1.5, 17, float("nan"))),
    ],
)
def test_settings_that_make_no_sense_are_refused(fields, name):
    with pytest.raises(InvalidInput, match=f"scale.{name}"):
        ScaleConfig(**fields)


def test_where_shards_can_not_leave_a_record_out_nobody_answers(tmp_path, monkeypatch):
    """The removal is durable by then, so the record must not vote again."""
    records = tiny.records()
    teacher = tiny.ready(tmp_path, "private_knn", records, 2)

    ask_each = ShardPool.ask_each

    def fails(pool, name, arguments):
        if name == "amend":
            raise OSError("no space")
        return ask_each(pool, name, arguments)

    with monkeypatch.context() as patched:
        patched.setattr(ShardPool, "ask_each", fails)
        with pytest.raises(OSError, match="no space"):
            teacher.remove(records.ids[5:6])
    with pytest.raises(InvalidInput, match="extractor"):
        teacher.answer(Queries(tiny.queries(2)))
    teacher.remove(records.ids[5:6])
    teacher.use_extractor(tiny.RAW)
    assert records.ids[5] not in teacher._index.ids


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("merged", [1, 10, 64, 1 << 20])
def test_shards_are_merged_by_ranges_of_ids(tmp_path, monkeypatch, merged, unit):
    monkeypatch.setattr(shards_module, "MERGED_ROWS", merged)
    records = tiny.records(200, unit=unit)
    index = tiny.index_of(tmp_path / "d", records, 5, unit)
    records = records.take(3 + np.argsort(records.ids[3:]))
    np.testing.assert_array_equal(index.ids, records.ids)
    np.testing.assert_array_equal(index.labels, records.labels)
    assert (index.persons is None) == (records.persons is None)
    if index.persons is not None:
        np.testing.assert_array_equal(index.persons, records.persons)


def test_shards_take_no_budgets_by_numbers(tmp_path):
    numbered = replace(tiny.records(), names="numbers")
    with pytest.raises(InvalidInput, match=r"scale\.shards.*rows without ids"):
        tiny.ready(tmp_path / "ind", "ind_knn", numbered, shards=2)
    tiny.ready(tmp_path / "sums", "private_linear", numbered, shards=2)
