"""Minutes that a student may learn for decide whether --refine is taken: by public rows, once."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

import labelwall as lw
from labelwall import pipeline
from labelwall.experiment.config.config import Config
from labelwall.experiment.config.settings import to_yaml
from labelwall.experiment.run import door, expected
from labelwall.experiment.run.expected import refining
from labelwall.experiment.run.tuning import REST, STEP
from labelwall.student.public_settings import PublicSide
from labelwall.student.student_config import StudentConfig
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.errors import InvalidInput, MissingData
from tests.experiment import tiny
from tests.experiment.checks import check_one_error, named


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def forecast(monkeypatch) -> list[float]:
    """Minutes of a refinement; the last ones count."""
    told = [7.2]
    monkeypatch.setattr(door, "FEW_PUBLIC", 0)
    monkeypatch.setattr(door, "refining", lambda *_: 60 * told[-1])
    return told


def written(images: dict[str, str], *options: str) -> dict:
    out = f"{len(list(Path().iterdir()))}.yaml"
    assert pipeline.main(["init", *named(images), *options, "--out", out]) == 0
    return yaml.safe_load(Path(out).read_text())


def test_a_forecast_that_fits_is_refine_and_another_one_the_default(
    image_folders, forecast, capsys
) -> None:
    default, refined = written(image_folders), written(image_folders, "--refine")
    assert default["student"] != refined["student"]
    capsys.readouterr()
    assert written(image_folders, "--minutes", "7.3") == refined
    assert "refining takes about 7.2 minutes, so it is done" in capsys.readouterr().err
    assert written(image_folders, "--minutes", "7.1") == default
    line = "refining would take about 7.2 minutes; a limit of 8 allows it"
    assert line in capsys.readouterr().err
    steps = ("--minutes", "8", "--student.steps", "40")
    assert written(image_folders, *steps)["student"] == refined["student"] | {"steps": 40}


def test_few_public_images_are_not_refined_however_many_minutes_there_are(
    image_folders, capsys
) -> None:
    assert written(image_folders, "--minutes", "1000") == written(image_folders)
    said = re.search(r"(\d+) public images are too few to refine: 400", capsys.readouterr().err)
    assert int(said[1]) == len([*Path(image_folders["public"]).rglob("*.png")])


def test_python_has_the_same_minutes(image_folders, forecast, monkeypatch, capsys) -> None:
    heard = list[Config]()
    monkeypatch.setattr("labelwall.experiment.api.train", lambda config, *_: heard.append(config))
    monkeypatch.setattr("labelwall.experiment.api.load", lambda _: None)
    monkeypatch.setattr("labelwall.experiment.api.write_file", lambda *_: None)
    data = lw.Data(**image_folders)
    for minutes in (7.3, 7.1):
        lw.fit(data, minutes=minutes, run_dir=f"out{minutes}")
    assert [config.student.backbone for config in heard] == ["pretrained", "linear"]
    lw.plan(data, minutes=1.0, mechanism={"kind": "private_linear", "steps": 2})
    assert "refining would take about 7.2 minutes" in capsys.readouterr().err
    for wrong in ({"minutes": 0}, {"minutes": "5"}, {"minutes": 5, "student": {"backbone": "mlp"}}):
        with pytest.raises(InvalidInput, match="`minutes`"):
            lw.plan(data, **wrong)


def test_a_plan_says_it_beside_the_price(image_folders, forecast, capsys) -> None:
    assert pipeline.main(["plan", *named(image_folders), "--minutes", "1"]) == 0
    assert "refining would take about 7.2 minutes" in capsys.readouterr().err


def test_a_run_folder_s_decision_stays_whatever_is_forecast_later(
    image_folders, forecast, capsys, monkeypatch
) -> None:
    heard = list[Config]()

    def killed(config: Config, run_dir: Path, *_: object) -> None:
        heard.append(config)
        run_dir.mkdir(exist_ok=True)
        (run_dir / "config.yaml").write_text(to_yaml(config))
        raise MissingData("killed")

    monkeypatch.setattr("labelwall.experiment.whole_run.train", killed)
    for name, first, later in (("slow", 7.2, 0.5), ("fast", 0.5, 7.2)):
        command = ["run", *named(image_folders), "--minutes", "5", "--run_dir", name]
        for minutes in (first, later):
            forecast.append(minutes)
            assert pipeline.main(command) == 2
        begun, again = heard[-2:]
        assert again == begun
        assert (begun.student.backbone == "pretrained") == (name == "fast")
        said = f"{name} has decided what learns, student.backbone: {begun.student.backbone}"
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "mentioned"),
    [
        (["0"], "`minutes` must be a positive number"),
        (["-1"], "`minutes` must be a positive number"),
        (["nan"], "`minutes` must be a positive number"),
        (["inf"], "`minutes` must be a positive number"),
        (["soon"], "--minutes"),
        (["5", "--refine"], "Leave out `minutes`: `refine` or"),
        (["5", "--student.backbone", "linear"], "Leave out `minutes`: `refine` or"),
    ],
)
def test_a_mistake_is_one_line(image_folders, options, mentioned, capsys) -> None:
    for command in (["run", "--run_dir", "out"], ["plan"], ["init"]):
        images = [*command, *named(image_folders)]
        check_one_error([*images, "--minutes", *options], mentioned, capsys)
    assert list(Path().iterdir()) == []


def test_rows_that_are_no_images_and_files_are_refused(capsys) -> None:
    tiny.write()
    check_one_error(
        ["plan", "--data", "data.npz", "--minutes", "5"],
        "Leave out `minutes`: the rows are no",
        capsys,
    )
    command = ["plan", "--config", "config.yaml", "--minutes", "5"]
    check_one_error(command, "Leave out `minutes`: with --config, set", capsys)


def test_refining_is_views_and_steps_and_the_features_of_a_second_round(monkeypatch) -> None:
    monkeypatch.setattr(expected, "_seconds", lambda does: 0.8)  # of eight rows
    pixels = np.random.default_rng(0).integers(0, 256, (2, 20, 16, 16, 3), dtype=np.uint8)
    rows = {"public_x": pixels[0], "test_x": pixels[1]}
    np.savez("data.npz", **rows, test_y=np.arange(20) % 3)
    learns = {"backbone": "pretrained", "objective": "fixmatch", "steps": 50, "doubtful_folds": 0}
    learns |= {"batch_labelled": 4, "batch_unlabelled": 3, "kept_views": 5}
    side = PublicSide(
        data=DataConfig(source="arrays", path="data.npz"),
        features="hog",
        expected_records=300,
        student=StudentConfig(**learns),
    )
    first = 0.1 * 5 * 20 + 50 * (STEP + REST * 0.1 * (4 + 2 * 3))
    assert refining(side, 1) == pytest.approx(first)
    assert refining(side, 2) == pytest.approx(first + 0.1 * (20 + 20 + 300))
