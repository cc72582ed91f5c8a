"""`labelwall init`: a configuration from public rows alone, or a copy of a packaged one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from labelwall import pipeline
from labelwall.experiment.config.options import parse
from labelwall.experiment.config.own import default_delta, default_mechanism, look, rows_of
from labelwall.experiment.config.settings import load_config
from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.plan import Plan
from labelwall.teacher.mechanisms.base import Priced
from labelwall.teacher.mechanisms.calibration import calibrate
from labelwall.teacher.mechanisms.sums import PrivateLinear
from labelwall.teacher.records.sources import open_records
from labelwall.wall.datasets.sources import describe, read_public
from labelwall.wall.errors import LabelwallError
from tests.experiment import tiny

CONFIGS = Path(__file__).parents[3] / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, so that nothing lies beside the package."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return Path.cwd()


def named(places: dict[str, str]) -> list[str]:
    return [word for name, place in places.items() for word in (f"--{name}", place)]


def written(*options: str, out: str = "own.yaml") -> dict:
    """What `init` writes to a file."""
    assert pipeline.main(["init", *options, "--out", out]) == 0
    return yaml.safe_load(Path(out).read_text())


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """The one line of `init` with these options, which wrote nothing."""
    assert pipeline.main(["init", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert list(Path.cwd().iterdir()) == []
    return line


def facts(folders: dict[str, str]):
    return look({"source": "folder", "public": folders["public"], "test": folders["test"]})


def test_what_it_writes_is_a_data_set_that_reads(image_folders) -> None:
    written(*named(image_folders), out="configs/own.yaml")
    config = load_config(Path("configs/own.yaml")).data
    assert (config.classes, config.image_size, config.channels) == (["cat", "dog"], 16, 3)
    assert (config.private, config.public, config.test) == tuple(image_folders.values())
    assert len(read_public(config).inputs) == 12
    assert len(open_records(config, describe(config)).ids) == 12


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
def test_it_loads_and_spends_its_budget(image_folders, epsilon, delta) -> None:
    options = [] if delta is None else ["--delta", delta]
    written(*named(image_folders), "--epsilon", str(epsilon), *options)
    config = load_config(Path("own.yaml"))
    assert 0.97 * epsilon < certified_epsilon(config.plan()) <= epsilon
    assert config.budget.delta == (1e-5 if delta is None else float(delta))


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
    assert colour["features"] == "efficientnet_lite0_stages"
    assert colour["student"]["backbone"] == "linear"
    for number in range(3):  # one image in colour makes three channels
        Image.new("L", (12, 12)).save(Path(image_folders["public"]) / f"grey{number}.png")
    assert facts(image_folders).kind == "colour"
    for path in Path(image_folders["public"]).rglob("*.png"):
        Image.open(path).convert("L").save(path)
    grey = written(*named(image_folders), out="grey.yaml")
    assert (grey["features"], len(grey["rounds"])) == ("hog", 2)
    tiny.write(Path())
    vectors = written("--data", "data.npz")
    assert vectors["features"] == "raw"
    assert vectors["mechanism"] == {"kind": "private_linear", "steps": 20, "axes": 6}
    assert vectors["data"]["classes"] == ["0", "1", "2"]


def test_enough_labelled_rows_are_rehearsed_on() -> None:
    rows = {"public_x": np.zeros((5, 4), np.float32), "test_x": np.zeros((100, 4), np.float32)}
    np.savez("data.npz", test_y=np.arange(100) % 3, **rows)
    config, _ = parse(["--data", "data.npz"])
    assert (config.mechanism.kind, config.features) == ("auto", "auto")


@pytest.mark.parametrize(
    ("sides", "expected"),
    [([28, 28, 28], 28), ([30, 31, 200], 32), ([400, 500, 600], 96), ([5, 6, 7], 16)],
)
def test_the_side_is_the_bounded_median_in_fours(tmp_path, sides, expected) -> None:
    for name in ("test/a", "test/b", "public"):
        (tmp_path / name).mkdir(parents=True)
    for number, side in enumerate(sides):
        image = Image.fromarray(np.zeros((side, side + 50), dtype=np.uint8))
        image.save(tmp_path / "public" / f"{number}.png")
    seen = facts({name: str(tmp_path / name) for name in ("public", "test")})
    assert (seen.image_size, seen.kind, seen.rows) == (expected, "grey", 3)


@pytest.mark.parametrize("odd", ['no: "x" #1 {y} é', "0"])
def test_names_that_are_yaml_stay_names(image_folders, odd: str) -> None:
    Path(image_folders["test"], "cat").rename(Path(image_folders["test"], odd))
    written(*named(image_folders))
    assert load_config(Path("own.yaml")).data.classes == sorted(["dog", odd])


MISUSES = {
    "two of three": ({"private": "a", "public": "."}, "`test` must be given"),
    "both ways": ({"private": "a", "data": "b.npz"}, "`private` must be left out with --data"),
    "no such file": ({"data": "nowhere.npz"}, "`data` must be an existing"),
    "another file": ({"data": __file__}, "`data` must be an npz, CSV or parquet file"),
    "no such folder": ({"private": "a", "public": "b", "test": "c"}, "`public` must be an exist"),
}


@pytest.mark.parametrize("name", MISUSES)
def test_rows_are_named_in_one_way(name: str) -> None:
    options, expected = MISUSES[name]
    with pytest.raises(LabelwallError, match=expected) as caught:
        rows_of(options, {})
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "mentioned"),
    [
        ([], "`private` must be given"),
        (["--private", "a", "--public", "."], "`test` must be given"),
        (["--from", "mnist", "--public", "b"], "`from` must be left out"),
        (["--from", "mnist", "--seed", "1"], "`from` must be left out"),
        (["--data", "a.npz", "--epsilon", "much"], "--epsilon"),
        (["--data", "a.npz", "--expected_records", "-1"], "must be a count"),
        *(
            (["--from", name], ", ".join(NAMES))
            for name in ("mnits", "", "mnist.yaml", "../configs/mnist", "__init__")
        ),
    ],
)
def test_a_mistake_is_one_line(
    options: list[str], mentioned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mentioned in refused(capsys, *options)


@pytest.mark.parametrize(
    ("options", "mentioned"),
    [
        (["--run_dir", "x"], "unknown setting `run_dir`"),
        (["--student.stpes", "4"], "Did you mean `student.steps`?"),
        (["--student.steps", "many"], "student.steps"),
        (["--public", "nowhere"], "`public`"),
        (["--public", "EMPTY"], "`public`"),
        (["--test", "EMPTY"], "`test`"),
    ],
)
def test_what_is_no_setting_or_no_rows_is_not_written(
    image_folders, tmp_path, options: list[str], mentioned: str, capsys
) -> None:
    (tmp_path / "empty").mkdir()
    options = [word.replace("EMPTY", str(tmp_path / "empty")) for word in options]
    assert mentioned in refused(capsys, *named(image_folders), *options)


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_has_the_files_bytes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline.main(["init", "--from", name, "--out", "folder/copy.yaml"]) == 0
    assert Path("folder/copy.yaml").read_bytes() == (CONFIGS / f"{name}.yaml").read_bytes()
    command = "compare" if name.startswith("compare_") else "plan"
    assert f"labelwall {command} --config folder/copy.yaml" in capsys.readouterr().out


def test_a_copy_has_a_default_name_and_overwrites_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert pipeline.main(["init", "--from", "quickstart"]) == 0
    assert "labelwall plan --config labelwall.yaml" in capsys.readouterr().out
    assert pipeline.main(["plan", "--config", "labelwall.yaml"]) == 0
    copy = Path("labelwall.yaml").read_bytes()
    assert pipeline.main(["init", "--from", "mnist"]) == 2
    assert "`out` must be a file that does not exist yet" in capsys.readouterr().err
    assert Path("labelwall.yaml").read_bytes() == copy
    assert pipeline.main(["plan", "--config", "mnist"]) == 2  # a packaged name is no file
    assert "`--config` must be an existing YAML file. Found 'mnist'." in capsys.readouterr().err


ROUNDS = "[{queries: 5}, {queries: 6}]"
FLAGS = [
    ["--epsilon", "0.5", "--expected_records", "7000"],
    ["--delta", "1e-7", "--student.steps", "40", "--threads=1"],
    ["--features", "hog", "--student.backbone", "small_cnn", "--student.learning_rate", "1e-3"],
    ["--mechanism.kind", "reverse_knn", "--mechanism.centroids=9", "--rounds", ROUNDS],
    ["--seed", "3", "--custodian_dir", "apart", "--privacy.unit", "row", "--batch_size", "8"],
]


@pytest.mark.parametrize("flags", FLAGS)
def test_a_run_of_what_init_wrote_is_the_run_with_the_same_options(
    image_folders, flags: list[str]
) -> None:
    folders = named(image_folders)
    assert isinstance(written(*folders, *flags)["budget"]["delta"], float)
    parsed, _ = parse([*folders, *flags])
    assert load_config(Path("own.yaml")) == parsed != parse(folders)[0]
