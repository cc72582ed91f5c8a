"""Whole runs of every kind of question and label, in one table: planned, run, audited, resumed for
nothing, reported, predicted and compared."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import yaml

from labelwall import pipeline
from labelwall.experiment.report.report import write_report
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.student import student_model
from labelwall.student.student_model import load_student
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.wall.label_kinds import STEPS, AttributeLabels, ValueLabels, errors
from labelwall.wall.messages import ABSTAINED
from tests.experiment import checks, tiny

BASE = {"budget": {"epsilon": 3000.0}, "custodian_dir": "custody", "caps": None}
ATTRIBUTES = (
    '{source: arrays, labels: attributes, path: data.npz, classes: [left, "up & <b>", far]}'
)
VALUES = "{source: arrays, labels: value, bounds: [-10, 30], path: data.npz}"
SCALE = ValueLabels(-10, 30)
VOTES = "sample_rate: 0.5, sigma_screen: 3.0, sigma_vote: 3.0"
ASKED, SOME = "rounds: [{queries: 12}, {queries: 12}]", "rounds: [{}, {}]"


def bits(x: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Three attributes of tiny's three classes: 1, 1 and 2 of them present."""
    return np.array([[1, 0, 0], [0, 1, 0], [1, 0, 1]])[classes]


def value(x: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """A value that tiny's vectors decide, far inside the bounds: float64 [n]."""
    return np.asarray(8.0 + 4.0 * x[:, 0].astype(np.float64) - 3.0 * x[:, 1])


def itself(x: np.ndarray, classes: np.ndarray) -> np.ndarray:
    return classes


@dataclass(frozen=True)
class Kind:
    """``settings``: of the mechanism, and others; ``released``: by the auditor, after two rounds;
    ``paid``: charges of a prediction of nine rows; ``good``: least share of right labels, or of a
    value's variance that is explained."""

    settings: str
    released: dict[str, int]
    paid: dict[str, int]
    good: float = 0.5
    truth: Callable[[np.ndarray, np.ndarray], np.ndarray] = itself
    data: str = "{source: arrays, path: data.npz}"


def sums(kind: str, *rest: Any) -> Kind:
    settings = f"mechanism: {{kind: {kind}, steps: 2, noise_multiplier: 0.5}}\n{SOME}"
    return Kind(settings, {"0/sum": 4}, {"sum": 2}, *rest)


def scored(kind: str, *rest: Any) -> Kind:
    """Of both rounds' students and released classifiers."""
    plain = sums(kind, *rest)
    settings = f"evaluate: {{share: 0.05, sigma: 0.5, choose: true}}\n{plain.settings}"
    return replace(plain, settings=settings, released=plain.released | {"1/score": 4})


def screened(mechanism: str, good: float = 0.5) -> Kind:
    settings = f"mechanism: {{{mechanism}, threshold: 4, {VOTES}}}\n{ASKED}"
    return Kind(settings, {"0/screen": 24}, {"screen": 9}, good)


KINDS = {
    "sums": sums("private_linear"),
    "sums of attributes": scored("private_linear_attributes", 0.75, bits, ATTRIBUTES),
    "sums of values": scored("private_linear_value", 0.5, value, VALUES),
    "histograms": Kind(
        "mechanism: {kind: reverse_knn, centroids: 6, neighbours: 1, sigma: 0.5, margin: 3}\n"
        + SOME,
        {"0/histogram": 2},
        {"histogram": 1},
    ),
    "histograms and a score": Kind(
        "mechanism: {kind: reverse_knn, centroids: 6, neighbours: 1, sigma: 0.5}\n"
        "evaluate: {share: 0.05, sigma: 0.5, choose: true}\n" + SOME,
        {"0/histogram": 2, "1/score": 2},
        {"histogram": 1},
    ),
    "votes on attributes": Kind(
        "mechanism: {kind: private_knn_attributes, tau: 2, k: 15, sample_rate: 0.5, "
        f"sigma_vote: 0.5, threshold: 0.4}}\n{ASKED}",
        {"0/counts": 24},
        {"counts": 9},
        *(0.6, bits, ATTRIBUTES),
    ),
    "means, then medians": Kind(
        "mechanism: {kind: private_knn_mean, k: 15, sample_rate: 0.5, sigma_mean: 0.3}\n"
        "rounds: [{queries: 12}, {queries: 12, mechanism: {kind: private_knn_median, k: 15, "
        "sample_rate: 0.5, epsilon: 9.0, threshold: 4, sigma_screen: 2.0}}]",
        {"0/mean": 12, "1/screen": 12},
        {"mean": 9},
        *(0.3, value, VALUES),
    ),
    "batches": Kind(
        "mechanism: {kind: radius, radius: 0.35, epsilon: 30.0}\nfeatures: box\nbox: [[-5, 7]]\n"
        + ASKED,
        {"0/batch": 24},
        {"batch": 1},
        0.3,
    ),
    "votes by landmarks": screened("kind: private_radius, share: 0.3"),
    "votes on whitened features": screened("k: 15", 0.3),
}


def write(name: str, **others: str) -> Kind:
    """data.npz and config.yaml in the working folder; ``others``: settings in place of its own."""
    kind, sizes = KINDS[name], {"private": (200, 1), "public": (40, 2), "test": (30, 3)}
    settings = yaml.safe_load(f"data: {kind.data}\n{kind.settings}")
    settings |= {"whiten": 3} if "whitened" in name else {}
    settings |= {key: yaml.safe_load(text) for key, text in others.items()}
    tiny.write(**BASE | settings)
    truths = {f"{part}_y": kind.truth(*tiny.rows(*size)) for part, size in sizes.items()}
    tiny.change(**truths)
    return kind


def quality(kind: Kind, labels: np.ndarray, x: np.ndarray, classes: np.ndarray) -> float:
    """Share of right labels among the answered; of a value's variance, what is explained."""
    truth = kind.truth(x, classes)
    if kind.truth is value:
        answered = labels != ABSTAINED
        missed = SCALE.decode(labels[answered]) - truth[answered]
        return float(1 - (missed**2).mean() / truth[answered].var())
    return float((labels == truth)[labels != ABSTAINED].mean())


@pytest.mark.parametrize("name", KINDS)
def test_a_run_is_planned_audited_reported_and_resumed_for_nothing(name: str, capsys) -> None:
    kind = write(name)
    assert pipeline.main(["plan", "--config", "config.yaml", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert checks.run() == 0
    told = checks.summary()
    assert told["epsilon"] == plan["epsilon"] <= 3000
    x, classes = tiny.rows(40, 2)
    answers = checks.stored("out/round_1/answers.npz")
    rows, labels = answers["rows"], answers["labels"]
    assert len(set(rows.tolist())) == len(rows) == told["rounds"][0]["asked"]
    assert quality(kind, labels, x[rows], classes[rows]) >= kind.good
    accuracy = told["rounds"][0]["label_accuracy"]
    if accuracy is not None:
        assert quality(kind, labels, x[rows], classes[rows]) == pytest.approx(accuracy, abs=1e-4)

    def released() -> dict[str, int]:
        finding = audit(Path("out/ledger.sqlite"))
        assert finding.problems == []
        return {key: count for key, count in finding.released.items() if key in kind.released}

    assert released() == kind.released
    Path("out/round_2/metrics.json").unlink()  # as if killed before its end
    Path("out/round_2/answers.npz").unlink()
    assert checks.run() == 0
    assert released() == kind.released
    page = Path("out/report.html").read_text()
    assert "up & <b>" not in page
    assert write_report(Path("out")).read_text() == page


SCORED = ["histograms and a score", "sums of attributes", "sums of values"]


@pytest.mark.parametrize("unit", ["row", "person"])
@pytest.mark.parametrize("name", SCORED)
def test_the_score_is_that_of_the_model_on_the_private_rows(name: str, unit: str) -> None:
    """With hardly any noise; persons with two rows each, alike or not."""
    (x, classes), score = tiny.rows(200, 1), "{share: 0.05, sigma: 0.1, choose: true}"
    kind = write(name, privacy=f"{{unit: {unit}}}", evaluate=score)
    if unit == "person":
        tiny.change(private_person=np.array([f"p{row % 100}" for row in range(200)]))
    assert checks.run() == 0
    told, model = checks.summary(), load_student("out/student.safetensors")
    known, predicted, truth = told["private_score"], model.predict(x), kind.truth(x, classes)
    if kind.truth is value:
        truth = truth.clip(-10, 30)
        missed = np.minimum(np.abs(predicted - truth), 10.0)  # a quarter of the range
        rmse, noise = known["rmse"][:2]
        assert rmse == pytest.approx(math.sqrt((missed**2).mean()), abs=4 * noise)
        assert noise < 0.05
    else:
        assert known["right"] == pytest.approx((predicted == truth).mean(), abs=0.05)
    assert known["least"] < known["right"]
    assert checks.run() == 0
    assert checks.summary()["private_score"] == known
    assert "On the private records" in RunFolder(Path("out")).card.read_text()
    assert audit(Path("out/ledger.sqlite")).problems == []


@pytest.mark.parametrize("name", KINDS)
def test_queries_are_answered_once_and_known_then(name: str) -> None:
    """The file of queries teaches nothing but its answers; axes and cells are of public rows."""
    kind = write(name)
    x, classes = tiny.rows(9, 7)
    np.savez("q.npz", x=x)
    assert checks.predict() == 0
    charged, first = checks.receipt()["charged"], checks.stored("a.npz")
    assert {key: count for key, count in charged.items() if key in kind.paid} == kind.paid
    assert first["labels"].shape[1:] == ((3,) if kind.truth is bits else ())
    if kind.truth is value:
        assert ((first["labels"] >= 0) & (first["labels"] <= STEPS)).all()
        np.testing.assert_allclose(first["values"], -10 + first["labels"] * 40 / STEPS)
    elif (first["labels"] != ABSTAINED).any():
        assert quality(kind, first["labels"], x, classes) >= kind.good - 0.2
    assert checks.predict() == 0
    assert set(checks.receipt()["charged"].values()) == {0}
    assert np.array_equal(checks.stored("a.npz")["labels"], first["labels"])


def test_predictions_by_other_settings_have_matrices_of_their_own() -> None:
    """Another seed has other cells, which are asked about; what is known stays free."""
    write("histograms")
    np.savez("q.npz", x=tiny.rows(9, 7)[0])
    charged = []
    for seed in ("0", "5", "0", "5"):
        assert checks.predict("--seed", seed) == 0
        charged.append(checks.receipt()["charged"]["histogram"])
    assert charged == [1, 1, 0, 0]


@pytest.mark.parametrize("name", ["sums", "sums of attributes"])
def test_a_cap_before_the_first_step_leaves_no_label(name: str) -> None:
    """Refused rows have the shape of this label space; a cap later leaves those steps' model."""
    kind = write(name)
    for cap, place in ("3", "three"), ("2", "two"):
        places = ("--run_dir", place, "--custodian_dir", f"c{cap}")
        assert checks.run(*checks.QUICK, "--caps.asked", cap, *places) == 0
    with safetensors.safe_open("three/round_2/linear.safetensors", "numpy") as file:
        assert file.metadata()["labels"] in ("class", "attributes", "value")
    labels = checks.stored("two/round_2/answers.npz")["labels"]
    assert (labels == ABSTAINED).all()
    assert labels.ndim == (2 if kind.truth is bits else 1)


@pytest.mark.parametrize("name", ["votes on attributes", "means, then medians"])
def test_a_student_of_other_labels_is_scored_and_classifies(name: str) -> None:
    """What depends on chance is compared with itself; that students learn, tests/student says."""
    kind = write(name)
    assert checks.run() == 0
    told = checks.summary()
    spec, (x, classes) = RunFolder(Path("out")).load_extractor(told["best_round"]), tiny.rows(30, 3)
    truth, lines = kind.truth(x, classes), checks.classified(x)
    page = Path("out/report.html").read_text()
    if kind.truth is value:
        predicted = SCALE.predict(student_model.outputs(spec, x))
        assert errors(predicted, truth) == pytest.approx(told["test_errors"])
        np.testing.assert_allclose([float(line["value"]) for line in lines], predicted, rtol=1e-5)
        assert "Values of the test split" in page
        return
    accuracy = pytest.approx(told["test_accuracy"])
    predicted = AttributeLabels.of(3).predict(student_model.outputs(spec, x))
    assert (predicted == truth).mean() == accuracy
    names = ["left", "up & <b>", "far"]
    present = np.array([[float(line[name]) > 0.5 for name in names] for line in lines])
    assert (present == truth).mean() == accuracy
    texts = [", ".join(n for n, bit in zip(names, row, strict=True) if bit) for row in present]
    assert [line["label"] for line in lines] == [text or "none of them" for text in texts]
    assert "Attributes of the test split" in page


def test_a_comparison_scores_values_by_errors(capsys) -> None:
    """A reference without noise is the same in every run."""
    kind = write("sums of values")
    point = "{epsilon: 50.0, mechanism: {kind: private_linear_value}, rounds: [{}]}"
    methods = f"[{{name: m, points: [{point}]}}, {{name: all, reference: non_private}}]"
    student = yaml.safe_load(tiny.CONFIG)["student"] | {"steps": 80, "doubtful_folds": 0}
    settings = {"student": student, "threads": 1, "workers": 1, "seeds": [0]}
    settings |= {"data": yaml.safe_load(kind.data), "methods": yaml.safe_load(methods)}
    Path("compare.yaml").write_text(yaml.safe_dump(settings))
    assert pipeline.main(["compare", "--config", "compare.yaml", "--out", "table"]) == 0
    table = json.loads(Path("table/comparison.json").read_text())["table"]
    rows = {row["method"]: row for row in table}
    assert 0 < rows["m"]["epsilon"] <= 50
    assert rows["all"]["errors"]["r2"] > 0.5
    assert b"R2 on the test split" in Path("table/accuracy_by_epsilon.svg").read_bytes()
    baseline = {"name": "x", "baseline": {"kind": "linear_noisy_sgd"}, "epsilons": [1.0]}
    settings["methods"].append(baseline)
    Path("compare.yaml").write_text(yaml.safe_dump(settings))
    checks.check_one_error(
        ["compare", "--config", "compare.yaml", "--out", "t"], "baseline", capsys
    )


def test_the_custodians_commands_know_labels(capsys) -> None:
    write("means, then medians")
    assert pipeline.main(["data", "--config", "config.yaml"]) == 0
    shown = capsys.readouterr().out
    assert "200 usable" in shown
    values = np.clip(value(*tiny.rows(200, 1)), -10, 30)
    counts, edges = np.histogram(values, bins=10, range=(-10, 30))
    listed = re.findall(r"^  (-?\d+) to (-?\d+) +(\d+)$", shown, re.MULTILINE)
    first, last, found = np.array(listed, dtype=int).T
    assert (first.tolist(), last.tolist()) == (edges[:-1].tolist(), edges[1:].tolist())
    shift = np.cumsum(found - counts)
    assert abs(shift).max() <= 1  # a row less than a step from an edge may count on either side
    assert shift[-1] == 0
    np.savez("q.npz", x=tiny.rows(2, 7)[0])
    assert checks.predict() == 0
    rows = {"private_x": tiny.rows(4, 8)[0], "private_y": [1.5, 400.0, np.nan, -3.0]}
    np.savez("more.npz", **rows, private_id=np.arange(7000, 7004))
    assert pipeline.main(["records", "add", "--config", "config.yaml", "--rows", "more.npz"]) == 0
    assert "3 added" in capsys.readouterr().out
