"""`records add`, `records remove`: nothing is charged, and removed data is in no file."""

import json
import shutil
from argparse import Namespace
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from labelwall import pipeline
from labelwall.experiment.config.config import Config
from labelwall.experiment.config.settings import load_config
from labelwall.teacher.analysts import open_analyst
from labelwall.teacher.custody.groups import RoundConfig
from labelwall.teacher.custody.opening import custody, local_teacher
from labelwall.teacher.custody.private_settings import PrivateSide
from labelwall.teacher.custody.records import add_records, ids_of, remove_records
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.records.private_records import ingest_more, open_records
from labelwall.teacher.teacher import Teacher
from labelwall.wall.console import Console
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.datasets.folders import stable_hash
from labelwall.wall.datasets.sources import describe
from labelwall.wall.errors import InvalidInput, MissingData
from labelwall.wall.guarantee import EACH
from labelwall.wall.messages import ExtractorSpec
from tests.experiment import tiny
from tests.experiment.checks import predict, stored

IND_KNN = {"kind": "ind_knn", "threshold": 0.3, "sigma_label": 0.3}
WHERE = ("--config", "config.yaml")


@pytest.fixture
def folder(folder):
    tiny.configure(mechanism=IND_KNN, custodian_dir="custody", caps=None)
    assert ask(9) == 0
    return folder


def records(*options: str) -> int:
    # what a configuration sets, the options after it change
    return pipeline.main(["records", *options[:1], *WHERE, *options[1:]])


def ask(seed: int) -> int:
    np.savez("q.npz", x=tiny.rows(10, seed)[0])
    return predict()


def entries() -> tuple[int, dict]:
    state = Ledger(Path("custody/ledger.sqlite")).state
    return state.seq, state.spent


def more(ids: list[int], **arrays: np.ndarray) -> np.ndarray:
    x, y = tiny.rows(len(ids), 77)
    np.savez("more.npz", **{"private_x": x, "private_y": y, "private_id": np.array(ids), **arrays})
    return x


def holding(content: bytes) -> list[str]:
    files = [path for path in Path("custody").iterdir() if path.is_file()]
    return sorted(path.name for path in files if content in path.read_bytes())


def test_records_are_added_and_removed_at_no_charge_and_their_data_goes(folder, capsys):
    rows, before = more([5, 6, 7]), entries()
    assert records("add", "--rows", "more.npz") == 0
    assert "3 added; nothing was charged" in capsys.readouterr().out
    assert entries() == before
    assert holding(rows[1].tobytes()) == ["ledger.sqlite"]
    assert ask(10) == 0
    after = entries()
    assert after[1] == before[1]  # a prepaid slot
    assert records("remove", "--ids", "6,1007,424242") == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-3].startswith("PRIVATE")
    assert "3 ids, 2 of them present" in out
    assert entries() == after
    assert holding(rows[1].tobytes()) == []
    assert holding(rows[2].tobytes()) == ["ledger.sqlite"]
    for cache in Path("custody").glob("embeddings-*.npz"):
        assert len(np.load(cache)["digests"]) == 200 + 3 - 2


def test_what_was_not_there_or_is_there_already_is_said(folder, capsys):
    assert records("remove", "--ids", "424242") == 0
    assert "NOBODY IS REMOVED" in capsys.readouterr().out
    more([5, 6])
    assert records("add", "--rows", "more.npz") == 0
    assert "2 added; nothing" in capsys.readouterr().out
    assert records("add", "--rows", "more.npz") == 0
    assert "0 added, 2 were there already; nothing" in capsys.readouterr().out


def test_a_dry_run_changes_nothing_and_says_what_would_be(folder, capsys):
    def state() -> dict[str, bytes]:
        files = [path for path in Path("custody").iterdir() if path.name != "lock"]
        return {path.name: path.read_bytes() for path in files}

    x, _ = tiny.rows(4, 77)
    x[0, 0] = np.nan
    more([5, 6, 1003, 8], private_x=x, private_y=np.array([0, 99, 1, 2]))
    before = state()
    assert records("add", "--rows", "more.npz", "--dry_run") == 0
    out = capsys.readouterr().out
    assert "4 rows, 2 usable" in out
    assert "1 usable row has an id that is already in use" in out
    assert out.endswith("dry run: nothing was changed\n")
    assert records("remove", "--ids", "1003", "--dry_run") == 0
    assert "1 ids, 1 of them present\ndry run" in capsys.readouterr().out
    assert state() == before


MISTAKES = [
    ([], "change"),
    (["add"], "rows"),
    (["add", "--rows", "none.npz"], "none.npz"),
    (["add", "--rows", "custody"], "npz file"),
    (["add", "--rows", "data2.npz"], "private_id"),
    (["add", "--rows", "present.npz"], "Remove the old row first"),
    (["add", "--rows", "wide.npz"], "private_x"),
    (["remove"], "--ids_file"),
    (["remove", "--ids", "5,x"], "whole numbers"),
    (["remove", "--ids", str(2**70)], "whole numbers"),
    (["remove", "--ids", "5", "--custodian_dir", "elsewhere"], "custodian_dir"),
    (["remove", "--ids", "5", "--data.path", "data2.npz"], "another data set"),
]


def test_a_mistake_is_one_clear_line_and_changes_nothing(folder, capsys):
    arrays = stored("data.npz")
    del arrays["private_id"]
    np.savez("data2.npz", **arrays)
    x, y = tiny.rows(2, 77)
    np.savez("present.npz", private_x=x, private_y=y, private_id=np.array([1, 1000]))
    wide = np.zeros((2, 99), np.float32)
    np.savez("wide.npz", private_x=wide, private_y=y, private_id=np.array([1, 2]))
    before = entries()
    for options, mentioned in MISTAKES:
        assert records(*options) == 2, options
        (error,) = capsys.readouterr().err.strip().splitlines()
        assert mentioned in error, options
    assert entries() == before
    assert not Path("elsewhere").exists()
    identity = json.loads(Path("custody/dataset.json").read_text())
    assert identity["data"]["path"] == str(Path("data.npz").resolve())


def test_who_removes_a_row_by_its_place_is_told_to_leave_it_there(folder, capsys):
    line = "ids are row numbers here. Do not delete the row"
    assert records("remove", "--ids", "1005", "--dry_run") == 0
    assert line not in capsys.readouterr().out
    arrays = stored("data.npz")
    np.savez("data.npz", **{name: rows for name, rows in arrays.items() if name != "private_id"})
    assert records("remove", "--ids", "5", "--dry_run") == 2
    assert "by their ids, and are by their numbers now" in capsys.readouterr().err
    shutil.rmtree("custody")
    assert ask(9) == 0
    assert records("remove", "--ids", "5", "--dry_run") == 0
    assert line in capsys.readouterr().out


def removed(side: PrivateSide, **options: object) -> list[int]:
    nothing = {"ids": None, "ids_file": None, "images": [], "persons": None, "persons_file": None}
    return ids_of(side, Namespace(**nothing | options)).tolist()


def test_ids_come_from_numbers_files_and_image_paths(tmp_path):
    tiny.write()
    side = load_config(Path("config.yaml")).private_side()
    (tmp_path / "ids.txt").write_text("\ufeff7\n-3\r\n7\r", encoding="utf-8")
    assert removed(side, ids="5,7", ids_file=str(tmp_path / "ids.txt")) == [-3, 5, 7]
    assert removed(side, images=["cat/1.png"]) == [stable_hash("cat/1.png")]


def lines(first: int, count: int) -> str:
    """A table's lines with ids r0, r1, ...: heights in centimetres by two classes."""
    numbers = range(first, first + count)
    rows = (f"r{n},{150 + n % 50},{'ab'[n % 50 > 25]}" for n in numbers)
    return "\n".join(["record_id,height,kind", *rows])


def test_rows_of_a_table_are_added_as_a_run_would_read_them_and_removed_by_their_ids(tmp_path):
    """In the public rows' form and scale; not as the numbers that an npz file would have."""
    places = {split: f"{split}.csv" for split in ("private", "public", "test")}
    for path, first in zip(places.values(), (0, 1000, 2000), strict=True):
        Path(path).write_text(lines(first, 100))
    data = DataConfig("table", label="kind", **places)
    side = Config(data=data, rounds=[RoundConfig(2)], custodian_dir="custody").private_side()
    quiet, task = Console(quiet=True), describe(data)
    opening = partial(local_teacher, side, task, SystemEntropy(), quiet)
    with opening():
        pass
    Path("later.csv").write_text(lines(100, 3) + "\nr103,170,c\n")
    report = add_records(side, Path("later.csv"), dry_run=False, console=quiet)
    assert "4 rows, 3 usable" in report
    Path("private.csv").write_text(lines(0, 103))
    anew, ids = open_records(data, task), removed(side, ids="r100,r101, r5,nobody")
    assert removed(side, ids="7.0") == removed(side, ids="7")
    added = ingest_more(Path("later.csv"), data, task).records
    assert np.array_equal(added.inputs, anew.inputs[100:])
    assert np.array_equal(added.labels, anew.labels[100:])
    with opening() as teacher:
        assert teacher.present(anew.ids).all()
        assert teacher.present(np.array(ids)).sum() == 3
    report = remove_records(side, np.array(ids), dry_run=False, console=quiet)
    assert "4 ids, 3 of them present" in report
    np.savez("more.npz", private_x=np.zeros((1, 1), np.float32), private_y=[0], private_id=[7])
    Path("nameless.csv").write_text("height,kind\n170,a\n")
    for path, rule in (("more.npz", "an id of each row"), ("nameless.csv", "column record_id")):
        with pytest.raises(InvalidInput, match=rule):
            add_records(side, Path(path), dry_run=False, console=quiet)
    with pytest.raises(MissingData, match=r"none\.csv"):
        add_records(side, Path("none.csv"), dry_run=False, console=quiet)
    Path("narrow.csv").write_text("record_id,kind\nr900,a\n")
    with pytest.raises(InvalidInput, match=r"`rows` must be .*height"):
        add_records(side, Path("narrow.csv"), dry_run=False, console=quiet)
    with pytest.raises(InvalidInput, match="whole numbers"):
        removed(replace(side, data=replace(data, id="")), ids="r900")
    with pytest.raises(InvalidInput, match="no column of ids"):
        ingest_more(Path("later.csv"), replace(data, id=""), task)


def test_images_of_a_folder_are_added_as_a_run_would_read_them(tmp_path, image_folders):
    for name in ("cat", "dog"):
        (tmp_path / "later" / name).mkdir(parents=True)
        for number in range(2):
            shutil.copy(f"private/{name}/{number}.png", f"later/{name}/later{number}.png")
    Path("later/cat/broken.png").write_bytes(b"no image")
    folders = {split: split for split in image_folders}
    data = DataConfig(source="folder", image_size=8, **folders)
    config = Config(data=data, rounds=[RoundConfig(2)], custodian_dir="custody")
    quiet = Console(quiet=True)
    side, nowhere = config.private_side(), replace(config, custodian_dir=None)
    opening = partial(local_teacher, side, describe(data), SystemEntropy(), quiet)
    with pytest.raises(InvalidInput, match="custodian_dir"):
        add_records(nowhere.private_side(), Path("later"), dry_run=False, console=quiet)
    with opening():
        pass
    report = add_records(side, Path("later"), dry_run=False, console=quiet)
    assert "5 rows, 4 usable" in report
    assert "1 images that can not be decoded" in report
    ids = removed(side, images=["cat/later0.png", "dog/1.png", "cat/broken.png"])
    with opening() as teacher:
        assert teacher.present(np.array(ids)).sum() == 2


def test_records_of_a_directory_with_a_budget_for_each_analyst():
    """One change for all of them; a run can not spend from such a directory."""
    tiny.write(custodian_dir="custody")
    side = load_config(Path("config.yaml")).private_side()
    extractor = ExtractorSpec("raw", (tiny.DIMENSIONS,), tiny.CLASSES)
    rows = partial(open_records, side.data, describe(side.data))
    with closing(custody(side, False, adversaries=[EACH])) as register:
        directories = []
        for name in ("ann", "bob"):
            with closing(open_analyst(register, name)) as mine:
                place = mine.ledger, mine.directory
                teacher = Teacher(rows, *place, tiny.CLASSES, SystemEntropy())
                teacher.use_extractor(extractor)
                directories.append(mine.directory)
    assert records("remove", "--ids", "1007") == 0
    caches = [next(directory.glob("embeddings-*")) for directory in directories]
    assert [len(np.load(cache)["features"]) for cache in caches] == [199, 199]  # of 200
    more([1007])
    assert records("add", "--rows", "more.npz") == 0
    assert ask(9) == 2
