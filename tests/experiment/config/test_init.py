"""`labelwall init`: a configuration from public folders alone, or a copy of a packaged one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from jsonargparse import ArgumentParser
from PIL import Image

from labelwall import pipeline
from labelwall.experiment.config.init import packaged_configs
from labelwall.experiment.config.own import (
    OwnData,
    as_yaml,
    default_delta,
    default_mechanism,
    look,
    own_settings,
)
from labelwall.experiment.config.settings import config_parser, load_config, parse
from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.plan import Plan
from labelwall.teacher.mechanisms.base import Priced
from labelwall.teacher.mechanisms.calibration import calibrate
from labelwall.teacher.mechanisms.sums import PrivateLinear
from labelwall.teacher.records.sources import open_records
from labelwall.wall.datasets.sources import DataConfig, describe, read_public
from labelwall.wall.errors import InvalidInput, LabelwallError, MissingData
from tests.experiment import tiny


def write(image_folders: dict[str, str], out: Path) -> dict:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(as_yaml(own_settings(OwnData(**image_folders))))
    return yaml.safe_load(out.read_text())


def named(places: dict[str, str]) -> list[str]:
    return [word for name, place in places.items() for word in (f"--{name}", place)]


def facts(public: Path, test: Path):
    return look({"source": "folder", "public": str(public), "test": str(test)})


def test_what_it_writes_is_a_data_set_that_reads(image_folders, tmp_path):
    config = DataConfig(**write(image_folders, tmp_path / "configs" / "own.yaml")["data"])
    assert (config.classes, config.image_size, config.channels) == (["cat", "dog"], 16, 3)
    assert (config.private, config.public, config.test) == tuple(image_folders.values())
    assert len(read_public(config).inputs) == 12
    assert len(open_records(config, describe(config)).ids) == 12


def test_it_neither_opens_nor_lists_the_private_folder(image_folders, tmp_path, opened):
    with opened() as paths:
        write(image_folders, tmp_path / "own.yaml")
    assert [path for path in paths if path.startswith(image_folders["public"])]
    assert not [path for path in paths if path.startswith(image_folders["private"])]
    first = (tmp_path / "own.yaml").read_text()
    elsewhere = image_folders | {"private": "/another/machine"}
    write(elsewhere, tmp_path / "other.yaml")
    assert (tmp_path / "other.yaml").read_text() == first.replace(
        image_folders["private"], "/another/machine"
    )


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, None), (0.1, "1e-6"), (3.0, "1e-3")])
def test_it_loads_and_spends_its_budget(image_folders, tmp_path, epsilon, delta):
    own = OwnData(**image_folders)
    text = as_yaml(own_settings(own, epsilon, None if delta is None else float(delta)))
    (tmp_path / "own.yaml").write_text(text)
    config = load_config(tmp_path / "own.yaml")
    assert 0.97 * epsilon < certified_epsilon(config.plan()) <= epsilon
    assert config.budget.delta == (1e-5 if delta is None else float(delta))


def test_delta_follows_public_rows_alone():
    deltas = [default_delta(rows) for rows in (1, 500, 10_000, 10_001, 60_000, 2_000_000)]
    assert deltas == pytest.approx([1e-5, 1e-5, 1e-5, 1e-6, 1e-6, 1e-8])


def test_axes_follow_records_and_noise(image_folders):
    findings = facts(Path(image_folders["public"]), Path(image_folders["test"]))
    many = replace(findings, rows=20_000, classes=tuple("0123456789"))
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
def test_a_tiny_budget_has_no_more_steps_than_noise_can_be_drawn_for(image_folders, epsilon):
    findings = facts(Path(image_folders["public"]), Path(image_folders["test"]))
    fields = default_mechanism(findings, 10_000, epsilon, 1e-5, 2)
    linear = PrivateLinear(**fields)
    asked = 2 * linear.steps
    (solved,) = calibrate([Priced(linear, asked, asked)], epsilon, 1e-5)
    assert certified_epsilon(Plan(epsilon, 1e-5, (Priced(solved, asked, asked).slot(),))) <= epsilon


def test_defaults_follow_what_is_public(image_folders, tmp_path):
    colour = write(image_folders, tmp_path / "colour.yaml")
    assert colour["features"] == "efficientnet_lite0_stages"
    assert colour["student"]["backbone"] == "linear"
    for path in Path(image_folders["public"]).rglob("*.png"):
        Image.open(path).convert("L").save(path)
    grey = write(image_folders, tmp_path / "grey.yaml")
    assert (grey["features"], len(grey["rounds"])) == ("hog", 2)
    tiny.write(tmp_path)
    vectors = own_settings(OwnData(data=str(tmp_path / "data.npz")))
    assert vectors["features"] == "raw"
    assert vectors["mechanism"] == {"kind": "private_linear", "steps": 20, "axes": 6}
    assert vectors["data"]["classes"] == ["0", "1", "2"]


def test_enough_labelled_rows_are_rehearsed_on(image_folders, tmp_path):
    facts = {"public_x": np.zeros((5, 4), np.float32), "test_x": np.zeros((100, 4), np.float32)}
    np.savez(tmp_path / "data.npz", test_y=np.arange(100) % 3, **facts)
    findings = own_settings(OwnData(data=str(tmp_path / "data.npz")))
    assert (findings["mechanism"], findings["features"]) == ({"kind": "auto"}, "auto")


MISUSES = {
    "two of three": ({"private": "a", "public": "."}, "`test` must be given"),
    "both ways": ({"private": "a", "data": "b.npz"}, "`private` must be left out with --data"),
    "no such file": ({"data": "nowhere.npz"}, "`data` must be an existing"),
    "another file": ({"data": __file__}, "`data` must be an npz, CSV or parquet file"),
    "no such folder": ({"private": "a", "public": "b", "test": "c"}, "`public` must be an exist"),
}


@pytest.mark.parametrize("name", MISUSES)
def test_rows_are_named_in_one_way(name):
    options, expected = MISUSES[name]
    with pytest.raises(LabelwallError, match=expected) as refused:
        OwnData(**options).settings()
    assert len(str(refused.value).splitlines()) == 1


def test_folders_named_by_digits_stay_names_on_the_command_line(image_folders, tmp_path):
    for number, name in enumerate(("cat", "dog")):
        Path(image_folders["test"], name).rename(Path(image_folders["test"], str(number)))
    write(image_folders, tmp_path / "own.yaml")
    parser = ArgumentParser()
    parser.add_class_arguments(DataConfig, "data")
    data = yaml.safe_load((tmp_path / "own.yaml").read_text())["data"]
    (tmp_path / "data.yaml").write_text(yaml.safe_dump({"data": data}))
    parsed = parser.instantiate(parser.parse_path(tmp_path / "data.yaml")).data
    assert parsed == DataConfig(**data)
    assert parsed.classes == ["0", "1"]


@pytest.mark.parametrize(
    ("sides", "expected"),
    [([28, 28, 28], 28), ([30, 31, 200], 32), ([400, 500, 600], 96), ([5, 6, 7], 16)],
)
def test_the_side_is_the_bounded_median_in_fours(tmp_path, sides, expected):
    for name in ("a", "b"):
        (tmp_path / "test" / name).mkdir(parents=True)
    (tmp_path / "public").mkdir()
    for number, side in enumerate(sides):
        Image.fromarray(np.zeros((side, side + 50), dtype=np.uint8)).save(
            tmp_path / "public" / f"{number}.png"
        )
    findings = facts(tmp_path / "public", tmp_path / "test")
    assert (findings.image_size, findings.kind, findings.rows) == (expected, "grey", 3)


def test_one_colour_image_makes_three_channels(tmp_path, image_folders):
    for number in range(3):
        Image.new("L", (12, 12)).save(Path(image_folders["public"]) / f"grey{number}.png")
    assert facts(Path(image_folders["public"]), Path(image_folders["test"])).kind == "colour"


def test_names_with_yaml_in_them_survive(tmp_path, image_folders):
    odd = 'no: "x" #1 {y} é'
    Path(image_folders["test"], "cat").rename(Path(image_folders["test"], odd))
    assert write(image_folders, tmp_path / "own.yaml")["data"]["classes"] == sorted(["dog", odd])


def test_refusals(image_folders, tmp_path):
    (tmp_path / "empty").mkdir()
    for change, error in (
        ({"public": str(tmp_path / "nowhere")}, MissingData),
        ({"public": str(tmp_path / "empty")}, InvalidInput),
        ({"test": str(tmp_path / "empty")}, InvalidInput),
    ):
        with pytest.raises(error):
            write(image_folders | change, tmp_path / "new.yaml")
        assert not (tmp_path / "new.yaml").exists()


CONFIGS = Path(__file__).parents[3] / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, so that nothing is found beside the package."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_configuration_is_packaged() -> None:
    assert packaged_configs() == NAMES
    assert {"mnist", "own_folder", "compare_mnist"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_has_the_files_bytes(
    elsewhere: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pipeline.main(["init", "--from", name, "--out", "folder/copy.yaml"]) == 0
    assert Path("folder/copy.yaml").read_bytes() == (CONFIGS / f"{name}.yaml").read_bytes()
    command = "compare" if name.startswith("compare_") else "plan"
    assert f"labelwall {command} --config folder/copy.yaml" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["mnits", "", "mnist.yaml", "../configs/mnist", "__init__"])
def test_an_unknown_name_is_refused_with_all_names(
    elsewhere: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pipeline.main(["init", "--from", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert ", ".join(NAMES) in line
    assert list(elsewhere.iterdir()) == []


def test_a_copy_has_a_default_name_and_overwrites_nothing(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pipeline.main(["init", "--from", "quickstart"]) == 0
    assert pipeline.main(["plan", "--config", "labelwall.yaml"]) == 0
    copy = Path("labelwall.yaml").read_bytes()
    assert pipeline.main(["init", "--from", "mnist"]) == 2
    assert "`out` must be a file that does not exist yet" in capsys.readouterr().err
    assert Path("labelwall.yaml").read_bytes() == copy


FLAGS = [
    ["--epsilon", "0.5", "--expected_records", "7000"],
    ["--delta", "1e-7", "--student.steps", "40", "--threads=1"],
    ["--features", "hog", "--student.backbone", "small_cnn", "--student.learning_rate", "1e-3"],
    [
        "--mechanism.kind",
        "reverse_knn",
        "--mechanism.cells=9",
        "--rounds",
        "[{queries: 5}, {queries: 6}]",
    ],
    ["--seed", "3", "--custodian_dir", "apart", "--privacy.unit", "row", "--batch_size", "8"],
]


@pytest.mark.parametrize("flags", FLAGS)
def test_a_run_of_what_init_wrote_is_the_run_with_the_same_options(
    image_folders: dict[str, str], elsewhere: Path, flags: list[str]
) -> None:
    folders = named(image_folders)
    assert pipeline.main(["init", *folders, *flags]) == 0
    parsed, _ = parse(config_parser("run", ""), [*folders, *flags])
    written = load_config(Path("labelwall.yaml"))
    assert written == parsed
    assert isinstance(yaml.safe_load(Path("labelwall.yaml").read_text())["budget"]["delta"], float)
    assert parsed != parse(config_parser("run", ""), folders)[0]


def test_what_is_no_setting_is_not_written(
    image_folders: dict[str, str], elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = named(image_folders)
    for options, line in (
        (["--run_dir", "x"], "unknown setting `run_dir`"),
        (["--student.stpes", "4"], "Did you mean `student.steps`?"),
        (["--student.steps", "many"], "student.steps"),
        (["--config", "other.yaml"], "`config` must be left out with init"),
        (["--from", "mnist", "--seed", "1"], "`from` must be left out"),
    ):
        assert pipeline.main(["init", *folders, *options]) == 2
        (findings,) = capsys.readouterr().err.splitlines()
        assert line in findings
    assert not Path("labelwall.yaml").exists()


@pytest.mark.parametrize(
    ("options", "mentioned"),
    [
        ([], "`private` must be given"),
        (["--private", "a", "--public", "."], "`test` must be given"),
        (["--from", "mnist", "--public", "b"], "`from` must be left out"),
        (["--data", "a.npz", "--epsilon", "much"], "`epsilon` must be a number"),
        (["--data", "a.npz", "--expected_records", "-1"], "`expected_records` must be a count"),
    ],
)
def test_it_takes_a_name_or_all_three_folders(
    elsewhere: Path, options: list[str], mentioned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pipeline.main(["init", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert mentioned in line
    assert list(elsewhere.iterdir()) == []


def test_init_by_folders_on_the_command_line(
    image_folders: dict[str, str], elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pipeline.main(["init", *named(image_folders)]) == 0
    assert "labelwall plan --config labelwall.yaml" in capsys.readouterr().out
    assert pipeline.main(["plan", "--config", "labelwall.yaml"]) == 0
    assert pipeline.main(["plan", "--config", "mnist"]) == 2  # a packaged name is no file
    assert "`--config` must be an existing YAML file. Found 'mnist'." in capsys.readouterr().err
