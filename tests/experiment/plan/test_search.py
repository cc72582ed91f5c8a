"""`mechanism: auto`: chosen on public rows, fixed in the run's folder, without a private read."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelwall import pipeline
from labelwall.experiment.config.config import Config
from labelwall.experiment.config.settings import load_config, to_yaml
from labelwall.experiment.plan import search as auto
from labelwall.experiment.plan.planner import Goal
from labelwall.experiment.plan.search import decided
from labelwall.experiment.plan.show import expected
from labelwall.experiment.run.door import resumed
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.experiment.whole_run import train
from labelwall.student.public_settings import CountedPlan
from labelwall.teacher.custody.groups import RoundConfig
from labelwall.teacher.mechanisms.registry import Auto
from labelwall.teacher.mechanisms.sums import PrivateLinear, PrivateLinearValue
from labelwall.wall.console import Console
from labelwall.wall.datasets.data_config import DataConfig, PublicData, Task
from labelwall.wall.errors import InvalidInput, LabelwallError
from labelwall.wall.label_kinds import label_space
from labelwall.wall.progress import no_progress
from tests.experiment.checks import check_one_error, killed
from tests.experiment.checks import shown as printed
from tests.experiment.plan import planning

SETTINGS = """
mechanism: {kind: auto}
budget: {epsilon: 2.0}
student: {backbone: mlp, objective: supervised, steps: 20, doubtful_folds: 2, doubtful_steps: 5}
threads: 1
workers: 1
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch) -> Path:
    """A configuration whose data file has no private rows, and few candidates."""
    monkeypatch.setattr(auto, "mechanisms_for", _few(auto.mechanisms_for))
    monkeypatch.setattr("labelwall.experiment.plan.tuning.AXES", (2, 8))
    monkeypatch.setattr("labelwall.experiment.plan.tuning.CELLS", (10, 40))
    monkeypatch.setattr("labelwall.experiment.plan.tuning.REFINED", 1)
    monkeypatch.setattr("labelwall.experiment.plan.tuning.FINAL", 2)
    path = planning.write(tmp_path, SETTINGS)
    path.write_text(path.read_text().replace("[{queries: 9}, {queries: 9}]", "[{}]"))
    return path


def _few(original):  # type: ignore[no-untyped-def]
    """Only what is rehearsed: the other kinds take seconds each and have tests of their own."""
    return lambda config: [m for m in original(config) if m.once_a_round]


def with_private(config: Path) -> None:
    with np.load(config.parent / "data.npz") as stored:
        arrays = dict(stored)
    x, y = planning.vectors(1, planning.PRIVATE)
    np.savez(config.parent / "data.npz", private_x=x, private_y=y, **arrays)


def test_a_choice_needs_no_private_rows_and_is_nearly_the_best(config: Path) -> None:
    """The three Gaussian classes have linear borders: Bayes' rule is right on about 74%."""
    folder = RunFolder(config.parent / "out")
    open_ = replace(load_config(config), expected_records=planning.PRIVATE)
    found = decided(open_, folder, Path(f"{folder.path}.custodian"), Console(quiet=True))
    assert not found.open
    table = json.loads(folder.candidates.read_text())
    first = table["candidates"][0]
    assert first["expected"]["label_accuracy"] > 0.65
    assert first["expected"]["spread"] > 0
    assert first["mechanism"]["kind"] == found.mechanism.kind
    again = [entry["expected"]["spread"] > 0 for entry in table["candidates"]]
    assert again == sorted(again, reverse=True)  # one rehearsal tells less
    kinds = {entry["mechanism"]["kind"] for entry in table["candidates"]}
    assert kinds == {"reverse_knn", "private_linear"}
    assert f"{found.mechanism.kind} is chosen" in table["reason"]
    assert "test split" in table["source"]  # the public rows of these data have no labels
    config.write_text(config.read_text().replace("epsilon: 2.0", "epsilon: 0.1"))
    assert resumed(load_config(config), folder).open  # before it began: another search


def test_where_public_rows_are_foreign_a_classifier_is_released(config: Path, monkeypatch) -> None:
    folder, stage = RunFolder(config.parent / "out"), auto.Rehearsal
    monkeypatch.setattr(stage, "foreign", lambda *_: True)
    monkeypatch.setattr(stage, "score", _cells_are_best(stage.score, 1.0))
    decided(load_config(config), folder, Path(f"{folder.path}.custodian"), Console(quiet=True))
    table = json.loads(folder.candidates.read_text())
    assert table["candidates"][0]["mechanism"]["kind"] == "private_linear"
    assert "public rows differ" in table["source"]


@pytest.mark.parametrize(
    ("spread", "records", "kind"),
    [(0.5, None, "private_linear"), (0.5, 500, "reverse_knn"), (0.01, None, "reverse_knn")],
)
def test_of_records_that_are_guessed_a_near_linear_classifier_is_taken(
    config: Path, monkeypatch, spread: float, records: int | None, kind: str
) -> None:
    """There may be more of them, which gain it most."""
    stage, folder = auto.Rehearsal, RunFolder(config.parent / "out")
    monkeypatch.setattr(stage, "score", _cells_are_best(stage.score, 1.0, spread))
    open_ = replace(load_config(config), expected_records=records)
    decided(open_, folder, Path(f"{folder.path}.custodian"), Console(quiet=True))
    table = json.loads(folder.candidates.read_text())
    assert table["candidates"][0]["mechanism"]["kind"] == kind
    assert ("more records than guessed" in table["source"]) is (kind == "private_linear")


def test_plans_for_more_records_are_rehearsed_if_nobody_told_them(config, monkeypatch) -> None:
    """The best features and axes of each number of records, with the steps that were chosen."""
    best = {1: ("raw", 2), 4: ("fourier", 8), 16: ("raw", 8)}
    original, stage = auto.Rehearsal.score, auto.Rehearsal

    def score(self, view, mechanism, draws, asked, times=1):  # type: ignore[no-untyped-def]
        accuracy = 0.4
        if mechanism.kind == "private_linear":
            few = getattr(mechanism, "steps", 0) < 10
            accuracy = 0.5 + 0.2 * ((view.features, mechanism.axes) == best[times]) + 0.3 * few
        return replace(original(self, view, mechanism, range(1), asked), accuracy=accuracy)

    monkeypatch.setattr(stage, "score", score)
    for records in (None, 1_000):
        folder = RunFolder(config.parent / f"out {records}")
        open_ = replace(load_config(config), expected_records=records)
        found = decided(open_, folder, Path(f"{folder.path}.custodian"), Console(quiet=True))
        assert found.by_count == (
            []
            if records
            else [
                CountedPlan(records=4_000, features="fourier", axes=8),
                CountedPlan(records=16_000, features="raw", axes=8),
            ]
        )
        assert load_config(folder.config).by_count == found.by_count
        many = found.mechanism.steps >= 10  # type: ignore[attr-defined]
        assert many is (records is None)  # few steps can not count, whatever they promise


def _cells_are_best(original, accuracy, spread=0.0):  # type: ignore[no-untyped-def]
    def score(self, view, mechanism, *rest):  # type: ignore[no-untyped-def]
        found = original(self, view, mechanism, *rest)
        if mechanism.kind != "reverse_knn":
            return found
        return replace(found, accuracy=accuracy, spread=spread)

    return score


def test_a_run_keeps_its_choice(config: Path, monkeypatch, capsys) -> None:
    with_private(config)
    out = config.parent / "out"
    command = ["run", "--config", str(config), "--run_dir", str(out)]

    with monkeypatch.context() as patched:  # between the export of the ledger and config.yaml
        patched.setattr("labelwall.experiment.whole_run.write_file", killed)
        assert pipeline.main([*command, "--expected_records", "1500"]) == 130
    assert (out / "ledger.sqlite").exists()
    assert "is chosen" in capsys.readouterr().err
    monkeypatch.setattr("labelwall.experiment.plan.search.search", None)  # none is made again
    assert pipeline.main([*command, "--expected_records", "1500"]) == 0
    recorded = load_config(out / "config.yaml")
    assert recorded.mechanism.kind in ("private_linear", "reverse_knn")
    summary = json.loads((out / "summary.json").read_text())
    assert summary["test_accuracy"] > 0.6
    assert pipeline.main([*command, "--quiet"]) == 0
    assert pipeline.main([*command, "--quiet", "--budget.epsilon", "3"]) == 2
    assert "other settings (budget)" in capsys.readouterr().err


def test_a_folder_with_another_run_is_refused_before_a_search(config: Path, monkeypatch) -> None:
    folder, found = RunFolder(config.parent / "out"), load_config(config)
    folder.create()
    other = to_yaml(replace(found, mechanism=PrivateLinear(axes=4), seed=1))
    folder.config.write_text(other)
    folder.ledger.touch()  # it began
    monkeypatch.setattr("labelwall.experiment.plan.search.search", None)
    with pytest.raises(LabelwallError, match=r"other settings \(seed"):
        train(found, folder.path, Console(quiet=True))
    assert folder.config.read_text() == other


@pytest.mark.parametrize("place", ["run_dir", "custodian_dir"])
def test_a_folder_that_can_not_be_written_is_refused_before_a_search(
    config, monkeypatch, capsys, place
) -> None:
    monkeypatch.setattr("labelwall.experiment.plan.search.search", None)
    (config.parent / "file").write_text("")
    places = {"run_dir": "out", "custodian_dir": "own"} | {place: "file/below"}
    options = [
        part for name, to in places.items() for part in (f"--{name}", str(config.parent / to))
    ]
    command = ["run", "--config", str(config), "--quiet", *options]
    check_one_error(command, f"`{place}` must be a folder", capsys)


def test_the_plan_is_the_choice(config: Path, capsys) -> None:
    best = config.parent / "best.yaml"
    assert pipeline.main(["plan", "--config", str(config), "--json", "--out", str(best)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["epsilon"] <= 2.0
    found = load_config(best)
    assert found.mechanism.kind == shown["rounds"][0]["mechanism"]["kind"]
    assert found.mechanism.uncalibrated  # the noise follows from the budget


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("--mechanism.k=5", "unknown setting"),
        ("--caps.asked=5", "Leave out `caps`: `mechanism.kind: auto` chooses them."),
        ("--data.labels=attributes", "`test_y` must be"),
    ],
)
def test_bad_input_is_one_line(config: Path, capsys, option: str, line: str) -> None:
    check_one_error(["run", "--config", str(config), "--quiet", option], line, capsys)


def test_values_are_compared_by_r2() -> None:
    """A linear value: the noisy median of a hundred queries explains less than the regression."""
    (x, _), (test, _) = planning.vectors(2, 300), planning.vectors(3, 300)
    values, truth = (rows[:, 0] - rows[:, 1] for rows in (x, test))
    config = Config(
        data=DataConfig("arrays", path="-", labels="value", bounds=[-8.0, 8.0]),
        rounds=[RoundConfig()],
        mechanism=Auto(),
        features="raw",
        threads=1,
    )
    task = Task(label_space("value", [], [-8.0, 8.0]), (planning.DIMENSIONS,))
    public, goal = PublicData(x, values, test, truth), Goal(1.0, 1e-5, 5_000, 300, 1, asked=100)
    found = auto.search(config, task, public, goal, auto.mechanisms_for(config), no_progress)
    kinds = {choice.mechanism.kind for choice in found.tried}
    assert kinds == {"private_linear_value", "private_knn_mean", "private_knn_median"}
    several = replace(config, teacher=["https://a.example", "https://b.example"])
    assert [each.kind for each in auto.mechanisms_for(several)] == ["private_linear_value"]
    later = replace(config, budget=replace(config.budget, periods=3))
    with pytest.raises(InvalidInput, match=r"periods` must be 1 .* Leave --periods out"):
        auto.mechanisms_for(later)
    best = found.chosen
    assert best.mechanism.kind == "private_linear_value"
    assert 0.7 < best.accuracy == best.worth < 1
    assert "R2" in expected(best)
    assert found.by_count == ()
    # Of guessed records the first of some sums tells more: plans for those are rehearsed
    guessed, linear = replace(goal, told=False), PrivateLinearValue()
    found = auto.search(config, task, public, guessed, [linear], no_progress)
    assert found.chosen.mechanism.steps >= 4
    assert [plan.records for plan in found.by_count] == [20_000, 80_000]


@pytest.fixture
def named(tmp_path: Path) -> Path:
    return planning.write(tmp_path, "budget: {epsilon: 3.0}")


def test_the_command_writes_a_configuration_that_loads_and_fits(named, small_grids, capsys) -> None:
    out = named.parent / "new" / "best.yaml"
    command = ["plan", "--config", str(named), "--mechanism", "{kind: auto, among: private_knn}"]
    command += ["--expected_records", str(planning.PRIVATE), "--out", str(out)]
    shown = json.loads(printed(capsys, *command, "--json"))
    loaded = load_config(out)
    assert 0.97 * 3 < shown["epsilon"] <= loaded.budget.epsilon == 3.0
    chosen = shown["candidates"][0]
    assert loaded.mechanism.fields() == chosen["mechanism"] == shown["rounds"][0]["mechanism"]
    assert len(loaded.rounds) == 2
    asked = sum(r.queries or 0 for r in loaded.rounds)
    assert asked == loaded.caps.asked == chosen["expected"]["asked"]
    before = load_config(named)
    assert (loaded.data, loaded.student) == (before.data, before.student)
    assert shown["source"].startswith("400 rows of the test split")
    assert "; always the most frequent class is right on " in shown["source"]
    assert "seconds" not in shown  # its student, small_cnn, takes no vectors
    check_one_error(command, "`out` must be a file that does not exist yet", capsys)
    assert pipeline.main(["plan", "--config", str(out), "--json"]) == 0
    mlp = ("--student.backbone", "mlp")
    seconds = json.loads(printed(capsys, *command[:-2], *mlp, "--json"))["seconds"]
    assert 0 < seconds["from"] < seconds["to"]
    text = printed(capsys, *command[:-2])
    assert "sigma_screen" in text
    assert "1500 records" in text


def test_options_of_the_search_are_refused_without_it(named: Path, tmp_path: Path, capsys):
    command = ["plan", "--config", str(named), "--out", str(tmp_path / "x.yaml")]
    check_one_error(command, "Leave out `out`: without --mechanism.kind auto", capsys)


def test_no_private_file_is_opened_or_listed(image_folders, tmp_path, small_grids, opened):
    data = "\n".join(f"  {split}: {path}" for split, path in image_folders.items())
    config = tmp_path / "config.yaml"
    config.write_text(
        f"data:\n  source: folder\n{data}\n  image_size: 16\n"
        "budget: {epsilon: 3.0}\nmechanism: {kind: auto}\nrounds: [{queries: 5}]\n"
    )
    with opened() as paths, pytest.raises(InvalidInput, match="at least 100 labelled"):
        auto.best_plan(replace(load_config(config), expected_records=500), Console(quiet=True))
    assert [path for path in paths if path.startswith(image_folders["test"])]
    assert not [path for path in paths if path.startswith(image_folders["private"])]


def test_a_kind_that_no_planner_knows_is_refused(named: Path, capsys) -> None:
    command = ["plan", "--config", str(named), "--mechanism", "{kind: auto, among: gnmax}"]
    refused = "`mechanism.among` must be null, or one of private_knn, private_radius, "
    check_one_error(command, refused, capsys)
    other = "rounds: [{queries: 9, mechanism: {kind: gnmax}}"
    named.write_text(named.read_text().replace("rounds: [{queries: 9}", other))
    refused = "Leave out `rounds.mechanism`: `mechanism.kind: auto` chooses one for all rounds."
    check_one_error([*command[:-1], "{kind: auto}"], refused, capsys)
