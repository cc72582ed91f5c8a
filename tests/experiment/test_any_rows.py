"""Rows that are not as they were guessed: other numbers, other distributions, other shares."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors

from labelwall import pipeline
from labelwall.experiment.run import baselines
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.student import learning as training
from labelwall.student.batches import has_soft
from labelwall.student.linear import fit_classes, shift_of_gradients
from labelwall.student.linear.shares import Shares
from labelwall.student.linear.tuning import VIRTUAL_ROWS
from labelwall.student.round_files import CLASSIFIER, COUNTED, FEATURES
from labelwall.student.student_model import load_student
from tests.experiment import checks, tiny

LINEAR = {"kind": "private_linear", "steps": 12, "noise_multiplier": 14.0, "axes": 3}
SETTINGS = {"mechanism": LINEAR, "caps": None, "rounds": [{}], "custodian_dir": "custody"}
SETTINGS |= {"expected_records": 20}


@pytest.fixture
def folder(folder: Path) -> Path:
    tiny.configure(**SETTINGS)
    np.savez("q.npz", x=tiny.rows(30, 9)[0])
    return folder


@pytest.mark.parametrize(
    ("more", "said", "shape"),
    [
        ([], "8 axes instead of", (8, 8)),
        ([{"records": 100, "features": "fourier", "axes": 6}], "6 axes of fourier", (1024, 6)),
        ([{"records": 100, "features": "raw", "axes": 5}], "5 axes instead of", (8, 5)),
    ],
    ids=["other axes", "rehearsed features", "rehearsed axes"],
)
def test_a_wrong_guess_of_the_records_is_seen_in_the_first_sum(
    folder: Path, capsys, more, said, shape
) -> None:
    """Other axes are asked with, once: a resumed run and predictions are answered for nothing."""
    surer = {"mechanism": LINEAR | {"noise_multiplier": 7.0}, "features": "raw"}
    tiny.configure(**SETTINGS | surer | {"by_count": more})
    assert pipeline.main(list(checks.RUN[:-1])) == 0
    assert f"(expected_records). The next sums use {said}" in capsys.readouterr().err
    out = RunFolder(Path("out"))
    first, counted = (out.extractor(f"round_1/{name}") for name in (FEATURES, COUNTED))
    assert [spec.projection().shape for spec in (first, counted)] == [(8, 3), shape]  # type: ignore[union-attr]
    told = checks.summary()
    for name in ("metrics.json", "answers.npz", COUNTED):  # killed after the ledger's last charge
        (out.round(1) / name).unlink()
    out.summary.unlink()
    checks.check_known(told["ledger_head"])


def see_foreign_rows(monkeypatch) -> None:
    """All public rows are foreign, and enough."""

    def foreign(*arguments: Any) -> tuple[np.ndarray, Shares]:
        offsets, shares = shift_of_gradients.shifted(*arguments)
        return np.zeros_like(offsets), replace(shares, foreign=True)

    monkeypatch.setattr(fit_classes, "shifted", foreign)
    monkeypatch.setattr(training, "FEW_PUBLIC", 0)


def test_foreign_public_rows_leave_the_released_classifier(folder, monkeypatch, capsys) -> None:
    """It is the model in the file, alone, with its features inside; nothing is said of labels."""
    see_foreign_rows(monkeypatch)
    assert pipeline.main(list(checks.RUN[:-1])) == 0
    assert "its released classifier is taken for the student\n" in capsys.readouterr().err
    told = checks.summary()
    estimate = told["rounds"][0]["estimate"]
    assert estimate["why"].startswith("private and public rows seem to differ")
    assert estimate["few"]  # of about 67 records each, under 81
    Path("alone").mkdir()
    student = load_student(shutil.copy("out/student.safetensors", "alone"))
    assert student.info.backbone == "released/linear"
    x, y = tiny.rows(30, 3)
    assert (student.predict(x) == y).mean() == pytest.approx(told["test_accuracy"])


@pytest.mark.parametrize(("share", "unseen"), [(0.05, True), (0.15, False)])
def test_nothing_is_said_of_labels_where_a_class_has_hardly_any_records(
    folder: Path, monkeypatch, share: float, unseen: bool
) -> None:
    """Public rows may have more of it, as noise hides. A third is an equal share."""

    def rare(*arguments: Any) -> tuple[np.ndarray, Shares]:
        offsets, shares = shift_of_gradients.shifted(*arguments)
        return offsets, replace(shares, private=np.array([0.5, 0.5 - share, share]), foreign=False)

    monkeypatch.setattr(fit_classes, "shifted", rare)
    assert checks.run() == 0
    why = checks.summary()["rounds"][0]["estimate"]["why"]
    assert why.startswith("public rows may have more of a class") is unseen


def test_a_round_after_a_released_classifier_takes_its_sums_once_more(folder, monkeypatch) -> None:
    """By the same features, and its classifier is averaged with the earlier one."""
    see_foreign_rows(monkeypatch)
    tiny.configure(rounds=[{}, {}], **{k: v for k, v in SETTINGS.items() if k != "rounds"})
    assert checks.run() == 0
    out = RunFolder(Path("out"))
    stored = [safetensors.safe_open(out.round(n) / CLASSIFIER, "numpy") for n in (1, 2)]
    first, second = (file.metadata() for file in stored)
    assert first["extractor"] == second["extractor"]
    assert float(second["precision"]) > 1.2 * float(first["precision"])
    told = checks.summary()
    assert [entry["extractor"] for entry in told["rounds"]] == ["raw", "raw"]
    readings = [entry["epsilon_reading"] for entry in told["rounds"]]
    assert readings[1] > 1.2 * readings[0]  # other sums, not the same ones for nothing
    checks.check_known(told["ledger_head"])


@pytest.mark.parametrize(
    ("backbone", "least", "taught"),
    [("mlp", 400, False), ("linear", 400, False), ("mlp", 40, True), ("linear", 40, True)],
)
def test_few_public_rows_leave_the_released_classifier(
    folder: Path, monkeypatch, backbone: str, least: int, taught: bool, capsys
) -> None:
    """Fewer than the limit; there are 40."""
    monkeypatch.setattr(training, "FEW_PUBLIC", least)
    assert pipeline.main([*checks.RUN[:-1], f"--student.backbone={backbone}"]) == 0
    why = f"taken for the student, as fewer than {least} public rows teach less than it knows"
    assert (why in capsys.readouterr().err) is not taught
    assert not checks.summary()["rounds"][0]["estimate"]["why"].startswith("no shares")
    network = load_student("out/student.safetensors").info.backbone
    assert (network == "released/linear") is not taught
    assert checks.run(f"--student.backbone={backbone}") == 0  # resumed


def _widen(times: int) -> None:
    """Every column of the 8 comes so many times. There are 40 public rows."""
    rows = {**np.load("data.npz")}
    wide = {name: np.tile(x, (1, times)) for name, x in rows.items() if name.endswith("_x")}
    np.savez("data.npz", **{**rows, **wide})


@pytest.mark.parametrize("backbone", ["linear", "mlp"])
@pytest.mark.parametrize(("times", "taken"), [(6, True), (5, False)])
def test_a_student_of_vectors_wants_as_many_public_rows_as_columns(
    folder: Path, monkeypatch, capsys, backbone: str, times: int, taken: bool
) -> None:
    monkeypatch.setattr(training, "FEW_PUBLIC", 0)
    _widen(times)
    options = [f"--student.backbone={backbone}", "--student.steps=5"]
    assert pipeline.main([*checks.RUN[:-1], *options]) == 0
    assert ("classifier is taken for the student" in capsys.readouterr().err) is taken


def test_more_columns_than_a_teacher_takes_are_asked_on_axes(
    folder: Path, monkeypatch, capsys
) -> None:
    """Also what the result is compared with; a method without axes is refused before the budget."""
    monkeypatch.setattr(baselines, "MIN_LABELLED", 20)
    _widen(501)
    assert checks.run("--public_labels", "train") == 0
    assert checks.summary()["baselines"]["no_privacy"] > 0.5
    tiny.configure(custodian_dir="other")
    mentioned = "`whiten` must be at least 1 where private_knn sees more than 4000 features"
    checks.check_one_error([*checks.RUN, "--run_dir", "votes"], mentioned, capsys)
    assert not Path("other").exists()
    assert checks.run("--run_dir", "votes", "--whiten", "3") == 0
    tiny.configure(custodian_dir="fourier", features="fourier")  # of 1,024 dimensions
    assert checks.run("--run_dir", "fourier.run") == 0


def test_rows_are_classified_by_the_shares_of_their_classes(folder: Path, capsys) -> None:
    assert checks.run("--student.steps", "200") == 0
    x, y = tiny.rows(300, 9)
    wrong = {"half.json": '{"0": 1}', "list.json": "[1, 2, 3]"}
    for name, text in {"shares.json": '{"0": 1, "1": 0, "2": 0}', **wrong}.items():
        Path(name).write_text(text)
    for shares in ("test", "estimate", "shares.json"):
        labels = np.array([int(row["label"]) for row in checks.classified(x, "--shares", shares)])
        if shares == "shares.json":
            assert (labels == 0).mean() > 0.9
        else:
            assert (labels == y).mean() > 0.6
    Path("labels.csv").unlink()
    for shares in ("nothing.json", *wrong):
        mentioned = "a JSON file with a number for each class: 0, 1, 2"
        checks.check_one_error([*checks.CLASSIFY, "--shares", shares], mentioned, capsys)
        assert not Path("labels.csv").exists()


@pytest.mark.parametrize("use", ["train", "metrics"])
def test_labels_of_public_rows_are_learned_or_serve_metrics(folder: Path, use: str, capsys) -> None:
    """What is learned is said before anything is asked, and no metric is of rows that were."""
    assert pipeline.main([*checks.RUN[:-1], "--public_labels", use]) == 0
    said, metrics = capsys.readouterr().err, RunFolder(Path("out")).results(1)[0]
    assert ("public labels alone: " in said) == (use == "train")
    assert (metrics.label_accuracy is None) == (use == "train")
    assert checks.predict() == 0  # answered for nothing: the same sums are asked
    written = [path for path in Path("a.fit").rglob("*") if path.is_file()]
    assert len({path.stat().st_mtime for path in written}) == 1  # not those of the private sums
    assert checks.receipt()["charged"] == {"sum": 0}


def test_public_labels_alone_are_judged_by_columns_too(folder: Path, capsys) -> None:
    """By columns that the axes leave out. One number is said before the price and in the end."""
    parts = {"private": (900, 3), "public": (200, 5), "test": (200, 6)}
    for split, (x, y) in {split: tiny.rows(*drawn) for split, drawn in parts.items()}.items():
        x[:, -2:] *= 4
        tiny.change(**{f"{split}_x": x, f"{split}_y": y}, private_id=None)
    told = {"mechanism": LINEAR | {"axes": 2}, "features": "raw", "expected_records": 900}
    tiny.configure(**SETTINGS | told)
    assert pipeline.main([*checks.RUN[:-1], "--public_labels", "train"]) == 0
    said, told = capsys.readouterr().err, checks.summary()
    name, alone = told["baselines"]["public"]
    assert f"public labels alone: {100 * alone:.1f}% right by {name}" in said
    assert alone > 0.8  # two axes say less than a half


@pytest.mark.parametrize("kind", ["private_linear", "private_knn"])
def test_public_labels_are_learned_once(folder: Path, kind: str, monkeypatch) -> None:
    """By the classifier that labels virtual rows, or by the student where there is none."""
    lessons, train = [], training.train

    def seen(config, lesson, **others):
        lessons.append(lesson)
        return train(config, lesson, **others)

    monkeypatch.setattr(training, "train", seen)
    monkeypatch.setattr(training, "FEW_PUBLIC", 0)  # else a classifier is the student
    if kind == "private_knn":
        tiny.configure()
    assert pipeline.main([*checks.RUN[:-1], "--public_labels", "train"]) == 0
    asked = 40 if kind == "private_linear" else 12
    soft = has_soft(lessons[0].chances, len(lessons[0].labels))
    assert soft.sum() == (asked + VIRTUAL_ROWS if kind == "private_linear" else 0)
    with np.load("data.npz") as stored:
        truth = stored["public_y"]
    hard = lessons[0].labels[-len(truth) :].tolist() == truth.tolist()
    assert hard is (kind == "private_knn")
