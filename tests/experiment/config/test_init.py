"""`labelwall init`: a configuration from public folders alone, or a copy of a packaged one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from jsonargparse import ArgumentParser
from PIL import Image

from labelwall import pipeline
from labelwall.experiment.config.init import (
    ANSWERED_SHARE,
    MAX_QUERIES,
    look,
    packaged_configs,
    write_config,
)
from labelwall.student.config import StudentConfig
from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.mechanisms.private_knn.mechanism import PrivateKnn
from labelwall.teacher.records.sources import open_records
from labelwall.wall.datasets.sources import DataConfig, describe, read_public
from labelwall.wall.errors import InvalidInput, MissingData


def write(image_folders: dict[str, str], out: Path) -> dict:
    write_config(
        Path(image_folders["private"]),
        Path(image_folders["public"]),
        Path(image_folders["test"]),
        out,
    )
    return yaml.safe_load(out.read_text())


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


def test_the_price_of_its_caps_fits_the_budget_however_many_images(image_folders, tmp_path):
    loaded = write(image_folders, tmp_path / "own.yaml")
    mechanism = PrivateKnn(**loaded["mechanism"], sigma_screen=75.0, sigma_vote=25.0)
    most = mechanism.releases(2 * MAX_QUERIES, int(2 * MAX_QUERIES * ANSWERED_SHARE))
    plan = Plan(
        loaded["budget"]["epsilon"], loaded["budget"]["delta"], (Slot(mechanism.fields(), most),)
    )
    assert 0 < certified_epsilon(plan) <= plan.epsilon


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


def test_caps_cover_the_rounds_and_never_ask_more_than_there_is(image_folders, tmp_path):
    loaded = write(image_folders, tmp_path / "own.yaml")
    assert [entry["queries"] for entry in loaded["rounds"]] == [6, 6]
    assert loaded["caps"] == {"asked": 12, "answered": 8}
    assert StudentConfig(**loaded["student"]).augment == "natural"  # colour images
    assert set(loaded) == {
        "data",
        "budget",
        "mechanism",
        "caps",
        "rounds",
        "student",
        "seed",
        "custodian_dir",
    }


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
    found = look(tmp_path / "public", tmp_path / "test")
    assert (found.image_size, found.channels, found.public_images) == (expected, 1, 3)


def test_one_colour_image_makes_three_channels(tmp_path, image_folders):
    for number in range(3):
        Image.new("L", (12, 12)).save(Path(image_folders["public"]) / f"grey{number}.png")
    assert look(Path(image_folders["public"]), Path(image_folders["test"])).channels == 3


def test_names_with_yaml_in_them_survive(tmp_path, image_folders):
    odd = 'no: "x" #1 {y} é'
    Path(image_folders["test"], "cat").rename(Path(image_folders["test"], odd))
    assert write(image_folders, tmp_path / "own.yaml")["data"]["classes"] == sorted(["dog", odd])


def test_refusals(image_folders, tmp_path):
    out = tmp_path / "own.yaml"
    write(image_folders, out)
    with pytest.raises(InvalidInput, match="out"):
        write(image_folders, out)
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
    assert pipeline.main(["init", "--from", name, "--out", "made/copy.yaml"]) == 0
    assert Path("made/copy.yaml").read_bytes() == (CONFIGS / f"{name}.yaml").read_bytes()
    command = "compare" if name.startswith("compare_") else "plan"
    assert f"labelwall {command} --config made/copy.yaml" in capsys.readouterr().out


def test_a_copy_is_a_configuration_under_the_default_name(elsewhere: Path) -> None:
    assert pipeline.main(["init", "--from", "quickstart"]) == 0
    assert pipeline.main(["plan", "--config", "labelwall.yaml"]) == 0


@pytest.mark.parametrize("name", ["mnits", "", "mnist.yaml", "../configs/mnist", "__init__"])
def test_an_unknown_name_is_refused_with_all_names(
    elsewhere: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pipeline.main(["init", "--from", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert ", ".join(NAMES) in line
    assert list(elsewhere.iterdir()) == []


def test_an_existing_file_is_not_overwritten(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("labelwall.yaml").write_text("mine")
    assert pipeline.main(["init", "--from", "mnist"]) == 2
    assert "`out` must be a file that does not exist yet" in capsys.readouterr().err
    assert Path("labelwall.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "mentioned"),
    [
        ([], "`private`"),
        (["--private", "a", "--public", "b"], "`test`"),
        (["--from", "mnist", "--public", "b"], "`public`"),
    ],
)
def test_it_takes_a_name_or_all_three_folders(
    elsewhere: Path, options: list[str], mentioned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pipeline.main(["init", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{mentioned} must be given, or left out with --from NAME" in line
    assert list(elsewhere.iterdir()) == []


def test_a_packaged_name_is_no_file(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline.main(["plan", "--config", "mnist"]) == 2
    assert "`--config` must be an existing YAML file. Found 'mnist'." in capsys.readouterr().err


def test_init_by_folders_on_the_command_line(
    image_folders: dict[str, str], elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("private", "public", "test")
    folders = [word for name in names for word in (f"--{name}", image_folders[name])]
    assert pipeline.main(["init", *folders]) == 0
    assert "labelwall plan --config labelwall.yaml" in capsys.readouterr().out
    assert pipeline.main(["plan", "--config", "labelwall.yaml"]) == 0
