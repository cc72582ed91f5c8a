"""`labelwall init`: a configuration from public folders, which loads, costs what it says, and never looks at private rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from jsonargparse import ArgumentParser
from PIL import Image

from labelwall.experiment.config.init import ANSWERED_SHARE, MOST_QUERIES, look, write_config
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
    mechanism = PrivateKnn(**loaded["mechanism"])
    most = mechanism.releases(2 * MOST_QUERIES, int(2 * MOST_QUERIES * ANSWERED_SHARE))
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
