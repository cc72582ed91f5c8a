"""`labelwall init`: a configuration from public rows alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from labelwall import pipeline
from labelwall.experiment.config import own
from labelwall.experiment.config.options import parse
from labelwall.experiment.config.own import default_delta, default_mechanism, look
from labelwall.experiment.config.settings import load_config, to_yaml
from labelwall.experiment.plan.planner import Choice, View
from labelwall.experiment.plan.search import planned_config
from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.plan import Plan
from labelwall.teacher.mechanisms.base import Priced
from labelwall.teacher.mechanisms.calibration import calibrate
from labelwall.teacher.mechanisms.sums import PrivateLinear
from labelwall.teacher.mechanisms.votes import PrivateKnn
from labelwall.teacher.records.private_records import open_records
from labelwall.wall.datasets.sources import describe, read_public
from tests.experiment import tiny
from tests.experiment.checks import check_one_error, named


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return Path.cwd()


def written(*options: str, out: str = "own.yaml") -> dict:
    assert pipeline.main(["init", *options, "--out", out]) == 0
    return yaml.safe_load(Path(out).read_text())


def facts(folders: dict[str, str]):
    return look({"source": "folder", "public": folders["public"], "test": folders["test"]})


def test_it_neither_opens_nor_lists_the_private_folder(image_folders, opened) -> None:
    with opened() as paths:
        written(*named(image_folders))
    assert [path for path in paths if path.startswith(image_folders["public"])]
    assert not [path for path in paths if path.startswith(image_folders["private"])]
    written(*named(image_folders | {"private": "/another/machine"}), out="other.yaml")
    first = Path("own.yaml").read_text()
    assert Path("other.yaml").read_text() == first.replace(
        image_folders["private"], "/another/machine"
    )


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, None), (0.1, "1.26e-6"), (3.0, "1e-3")])
def test_it_loads_spends_its_budget_and_names_rows_that_read(image_folders, epsilon, delta) -> None:
    options = [] if delta is None else ["--delta", delta]
    written(*named(image_folders), "--epsilon", str(epsilon), *options, out="configs/own.yaml")
    config = load_config(Path("configs/own.yaml"))
    assert 0.97 * epsilon < certified_epsilon(config.plan()) <= epsilon
    assert config.budget.delta == (1e-5 if delta is None else float(delta))
    data = config.data
    assert (data.classes, data.image_size, data.channels) == (["cat", "dog"], 16, 3)
    assert (data.private, data.public, data.test) == tuple(image_folders.values())
    assert len(read_public(data).inputs) == len(open_records(data, describe(data)).ids) == 12


def test_delta_follows_public_rows_alone() -> None:
    deltas = [default_delta(rows) for rows in (1, 500, 10_000, 10_001, 60_000, 2_000_000)]
    assert deltas == [1e-5, 1e-5, 1e-5, 1e-6, 1e-6, 1e-8]


def test_axes_follow_records_and_noise(image_folders) -> None:
    many = replace(facts(image_folders), rows=20_000, classes=tuple("0123456789"))
    chosen = [
        default_mechanism(many, records, epsilon, 1e-5, 1)["axes"]
        for records, epsilon in ((20_000, 1.0), (5_000, 1.0), (20_000, 0.1), (100, 0.1))
    ]
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[0] > 256
    assert chosen[-1] == 20  # two a class at least
    mechanisms = [default_mechanism(many, n, 1.0, 1e-5, 1) for n in (100, 5_000, 100_000)]
    assert [each["steps"] for each in mechanisms] == [20, 23, 60]
    assert mechanisms[-1]["axes"] == 512
    narrow = replace(many, dimensions=30)
    assert default_mechanism(narrow, 100_000, 1.0, 1e-5, 1)["axes"] == 30


@pytest.mark.parametrize("epsilon", [0.004, 0.01])
def test_a_tiny_budget_has_no_more_steps_than_noise_can_be_drawn_for(
    image_folders, epsilon
) -> None:
    linear = PrivateLinear(**default_mechanism(facts(image_folders), 10_000, epsilon, 1e-5, 2))
    asked = 2 * linear.steps
    (solved,) = calibrate([Priced(linear, asked, asked)], epsilon, 1e-5)
    assert certified_epsilon(Plan(epsilon, 1e-5, (Priced(solved, asked, asked).slot(),))) <= epsilon


def test_defaults_follow_what_is_public(image_folders) -> None:
    colour = written(*named(image_folders), out="colour.yaml")
    assert colour["features"] == "efficientnet_lite2_stages"
    assert colour["student"]["backbone"] == "linear"
    plain = written(*named(image_folders), "--features", "hog", out="plain.yaml")
    assert plain["features"] == "hog"
    assert plain["student"].get("backbone") != "linear"  # which needs a network's features
    for number in range(3):  # one image in colour makes three channels
        Image.new("L", (12, 12)).save(Path(image_folders["public"]) / f"grey{number}.png")
    assert facts(image_folders).kind == "colour"
    for path in Path(image_folders["public"]).rglob("*.png"):
        Image.open(path).convert("L").save(path)
    grey = written(*named(image_folders), out="grey.yaml")
    assert (grey["features"], len(grey["rounds"]), grey["data"]["channels"]) == ("hog", 2, 1)
    assert "# images are greys. If they are photographs, data.channels: 3" in (
        Path("grey.yaml").read_text()
    )
    known = written(*named(image_folders), "--data.channels", "3", out="known.yaml")
    for name in ("features", "student", "rounds"):
        assert known[name] == colour[name]
    for path in Path(image_folders["public"]).rglob("*.png"):
        Image.open(path).resize((40, 40)).save(path)
    photographs = written(*named(image_folders), out="photographs.yaml")
    assert photographs["data"].get("channels", 3) == 3  # the rehearsal has a network for them
    tiny.write(Path())
    vectors = written("--data", "data.npz")
    assert vectors["features"] == "raw"
    assert vectors["mechanism"] == {"kind": "private_linear", "steps": 20, "axes": 8}
    assert vectors["data"]["classes"] == ["0", "1", "2"]


def test_enough_labelled_rows_are_rehearsed_on() -> None:
    rows = {"public_x": np.eye(5, 4, dtype=np.float32), "test_x": np.zeros((100, 4), np.float32)}
    np.savez("data.npz", test_y=np.arange(100) % 3, **rows)
    config, _ = parse(["--data", "data.npz"])
    assert (config.mechanism.kind, config.features) == ("auto", "auto")
    written("--data", "data.npz")
    assert "--out CHOSEN    the method, and a file to serve" in Path("own.yaml").read_text()


@pytest.mark.parametrize(
    ("features", "backbone", "steps", "asked"),
    [("efficientnet_lite2_stages", "linear", 600, [300]), ("hog", "small_cnn", 1200, [150, 150])],
)
def test_the_student_of_greys_follows_from_the_features_that_a_rehearsal_takes(
    tmp_path, features: str, backbone: str, steps: int, asked: list[int]
) -> None:
    """One layer on a network of photographs, in one round, or a network of its own."""
    for split, count in (("public", 3), ("test", 100)):
        for number in range(count):
            (folder := tmp_path / split / f"c{number % 2}").mkdir(parents=True, exist_ok=True)
            Image.new("L", (40, 40), number).save(folder / f"{number}.png")
    own = named({split: str(tmp_path / split) for split in ("private", "public", "test")})
    config, _ = parse(own)
    assert (config.features, config.student.backbone, len(config.rounds)) == ("auto", "auto", 2)
    view = View(features, 0, 20, 20, 300, 2, 5000)
    choice = Choice(1.0, view, PrivateKnn(), 300, 200, 150.0, 0.9)
    planned = planned_config(config, choice)
    assert (planned.student.backbone, planned.student.steps) == (backbone, steps)
    assert [entry.queries for entry in planned.rounds] == asked
    resumed = config.chosen(planned)
    assert (resumed.student, resumed.rounds) == (planned.student, planned.rounds)
    for given in (["--student.steps", "9"], ["--rounds", "3"]):
        config, _ = parse([*own, *given])
        assert config.student.backbone == "small_cnn"
        assert len(planned_config(config, choice).rounds) == len(config.rounds)
    assert parse([*own, "--student.batch_labelled", "9"])[0].student.backbone == "auto"
    config, _ = parse([*own, "--mechanism.kind", "gnmax"])
    assert config.student.backbone == "small_cnn"  # no rehearsal
    file = ["--config", str(tmp_path / "own.yaml")]
    (tmp_path / "own.yaml").write_text(to_yaml(parse(own)[0]))
    closed, _ = parse([*file, "--mechanism", "{kind: private_linear, steps: 3, axes: 2}"])
    assert closed.public_side().student.backbone == "small_cnn"  # beside hog


@pytest.mark.parametrize(
    ("sides", "expected"),
    [([28, 28, 28], 28), ([30, 31, 200], 32), ([400, 500, 600], 96), ([5, 6, 7], 16)],
)
def test_the_side_is_the_bounded_median_in_fours(tmp_path, sides, expected) -> None:
    for name in ("test/a", "test/b", "public"):
        (tmp_path / name).mkdir(parents=True)
        if name != "public":
            Image.new("L", (8, 8)).save(tmp_path / name / "0.png")
    for number, side in enumerate(sides):
        image = Image.fromarray(np.zeros((side, side + 50), dtype=np.uint8))
        image.save(tmp_path / "public" / f"{number}.png")
    seen = facts({name: str(tmp_path / name) for name in ("public", "test")})
    assert (seen.image_size, seen.kind, seen.rows) == (expected, "grey", 3)


@pytest.mark.parametrize("odd", ['no: "x" #1 {y} é', "0"])
def test_names_that_are_yaml_stay_names(image_folders, odd: str) -> None:
    for split in ("public", "test"):
        Path(image_folders[split], "cat").rename(Path(image_folders[split], odd))
    written(*named(image_folders))
    assert load_config(Path("own.yaml")).data.classes == sorted(["dog", odd])


@pytest.mark.parametrize(
    ("options", "mentioned"),
    [
        ([], "Give `private`: there is no --data FILE"),
        (["--private", "../a", "--public", "."], "--data.classes '[a, b]'"),
        (["--private", "a", "--test", "."], "Give `public`: there is no"),
        (["--private", "a", "--data", "b.npz"], "Leave out `private`: --data has all rows."),
        (["--data", "nowhere.npz"], "`data` must be an existing"),
        (["--data", __file__], "`data` must be an npz, CSV, parquet or DuckDB file"),
        (["--private", "a", "--public", "b", "--test", "c"], "`public` must be an exist"),
        (["--data", "a.npz", "--epsilon", "much"], "--epsilon"),
        (["IMAGES", "--expected_records", "-1"], "`expected_records` must be at least 1"),
        (["IMAGES", "--run_dir", "x"], "unknown setting `run_dir`"),
        (["IMAGES", "--student.stpes", "4"], "Did you mean `student.steps`?"),
        (["IMAGES", "--public", "nowhere"], "`public`"),
        (["IMAGES", "--public", "EMPTY"], "`public`"),
        (["IMAGES", "--test", "EMPTY"], "`data.test`"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    image_folders, tmp_path, options, mentioned, capsys
) -> None:
    (tmp_path / "empty").mkdir()
    images = named(image_folders)
    options = [word.replace("EMPTY", str(tmp_path / "empty")) for word in options]
    options = [*images, *options[1:]] if options[:1] == ["IMAGES"] else options
    assert pipeline.main(["init", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert mentioned in line
    assert list(Path.cwd().iterdir()) == []


def test_nothing_is_overwritten(image_folders, capsys) -> None:
    written(*named(image_folders))
    Path("own.yaml").write_text("edited")
    assert pipeline.main(["init", *named(image_folders), "--out", "own.yaml"]) == 2
    assert "`out` must be a file that does not exist yet" in capsys.readouterr().err
    assert Path("own.yaml").read_text() == "edited"


ROUNDS = "[{queries: 5}, {queries: 6}]"
FLAGS = [
    ["--epsilon", "0.5", "--expected_records", "7000"],
    ["--delta", "1e-7", "--student.steps", "40", "--threads=1"],
    ["--features", "hog", "--student.backbone", "small_cnn", "--student.learning_rate", "1e-3"],
    ["--mechanism.kind", "reverse_knn", "--mechanism.centroids=9", "--rounds", ROUNDS],
    ["--seed", "3", "--custodian_dir", "apart", "--privacy.unit", "row", "--batch_size", "8"],
]


@pytest.mark.parametrize("flags", FLAGS)
def test_a_run_of_what_init_wrote_is_the_run_with_the_same_options(image_folders, flags) -> None:
    folders = named(image_folders)
    assert isinstance(written(*folders, *flags)["budget"]["delta"], float)
    parsed, _ = parse([*folders, *flags])
    assert load_config(Path("own.yaml")) == parsed != parse(folders)[0]


def test_balanced_is_refused_where_no_classifier_of_classes_is_released(folder, capsys) -> None:
    tiny.write()
    row = ["plan", "--data", "data.npz", "--balanced"]
    given = ["--mechanism.kind", "private_knn", "--rounds", "[{queries: 5}]"]
    check_one_error(
        [*row, *given], "Leave out `balanced`: it needs classes and `private_linear`.", capsys
    )
    among = ["--mechanism.kind", "auto", "--mechanism.among", "reverse_knn"]
    check_one_error([*row, *among], "one of private_linear with --balanced.", capsys)
    assert parse(["--data", "data.npz", "--balanced"])[0].balanced


def test_refine_takes_the_features_network_as_the_student(
    image_folders, capsys, monkeypatch
) -> None:
    """By its option, or by its backbone alone; vectors have no such network."""
    config = written(*named(image_folders), "--refine")
    student = config["student"]
    assert (student["backbone"], student["objective"]) == ("pretrained", "fixmatch")
    assert config["features"] == "efficientnet_lite2_stages"
    by_name = written(*named(image_folders), "--student.backbone", "pretrained", out="b.yaml")
    assert by_name == config
    two = written(*named(image_folders), "--refine", "--rounds", "2", out="two.yaml")
    assert (len(config["rounds"]), len(two["rounds"])) == (1, 2)
    monkeypatch.setattr(own, "MANY_IMAGES", 3)
    assert len(written(*named(image_folders), "--refine", out="many.yaml")["rounds"]) == 2
    tiny.write()
    assert pipeline.main(["plan", "--data", "data.npz", "--refine"]) == 2
    assert "Leave out `refine`: the rows are no images." in capsys.readouterr().err
