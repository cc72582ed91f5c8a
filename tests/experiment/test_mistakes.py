"""What a user gets wrong is one clear line: settings that fit no kind of question or label, and
options."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.experiment import tiny
from tests.experiment.checks import check_one_error
from tests.experiment.test_kinds import RUN, VALUES, folder, write
from tests.ledgers import parsed

__all__ = ["folder"]  # a fixture

# (kind, setting, what it is now, what the line names)
MISTAKES = [
    (kind, setting, text, mentioned)
    for kind, mistakes in {
        "votes on attributes": [
            ("mechanism", "{kind: gnmax}", "mechanism.kind"),
            ("data", "{source: arrays, path: data.npz}", "mechanism.kind"),
            ("student", "{class_prior: uniform}", "student.class_prior"),
            (
                "mechanism",
                "{kind: private_knn_attributes, sampling_probability: 0}",
                "mechanism.sampling_probability",
            ),
        ],
        "means, then medians": [
            ("data", "{source: arrays, labels: value, path: data.npz}", "data.bounds"),
            ("data", VALUES.replace("[-10, 30]", "[30, -10]"), "data.bounds"),
            ("student", "{class_prior: uniform}", "student.class_prior"),
            ("mechanism", "{kind: private_knn_mean, sigma_mean: 0}", "mechanism.sigma_mean"),
        ],
        "batches": [
            ("box", "[]", "`box`"),
            ("features", "raw", "`box`"),
            ("box", "[[1, 1]]", "low < high"),
            ("box", "[[0, 1], [0, 1]]", "one side, or 8"),
            ("mechanism", "{kind: radius, radius: -1}", "mechanism.radius"),
            ("budget", "{epsilon: 40.0}", "budget.epsilon"),
            ("mechanism", "{kind: radius, accounting: cheap}", "accounting"),
        ],
        "histograms": [
            ("mechanism", "{kind: reverse_knn, centroids: 41, sigma: 0.5}", "at most 40"),
            ("mechanism", "{kind: reverse_knn, neighbours: 0}", "mechanism.neighbours"),
            ("mechanism", "{kind: reverse_knn, margin: .nan}", "mechanism.margin"),
            ("mechanism", "{kind: reverse_knn, row_neighbours: 0}", "mechanism.row_neighbours"),
            ("mechanism", "{kind: private_knn}", "rounds.queries"),
            ("rounds", "[{queries: 0}]", "rounds.queries"),
        ],
        "votes on whitened features": [("whiten", "-1", "whiten"), ("whiten", "9", "whiten")],
    }.items()
    for setting, text, mentioned in mistakes
]


@pytest.mark.parametrize(("name", "setting", "text", "mentioned"), MISTAKES)
def test_a_mistake_is_one_clear_line(
    name: str, setting: str, text: str, mentioned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(name, **{setting: text})
    check_one_error(RUN, mentioned, capsys)


# command -> options that it needs
COMMANDS = {
    "plan": [],
    "run": ["--run_dir", "out", "--quiet"],
    "predict": ["--queries", "q.npz", "--out", "a.npz", "--custodian_dir", "custody", "--quiet"],
    "serve": ["--custodian_dir", "custody"],
}
NETWORKS = ["--mechanism.kind", "gnmax", "--mechanism.teachers", "5"]
NETWORKS += ["--mechanism.classifier", "cnn", "--scale.shards", "2"]
EACH = ["--service.budget", "per_analyst", "--scale.shards", "2"]
OPTIONS = [
    ("run", ["--mechanism.sigma_vot", "3"], "sigma_vote"),
    ("run", ["--bugdet.epsilon", "3"], "Did you mean `budget`?"),
    ("run", ["--mechanism.sampling_probability", "1.5"], "sampling_probability"),
    ("run", ["--mechanism.sampling_probability", "0"], "sampling_probability"),
    ("run", ["--mechanism.k", "many"], "mechanism.k"),
    ("run", ["--student.learning_rate", "nan"], "learning_rate"),
    ("run", ["--data.path", "nowhere.npz"], "nowhere.npz"),
    ("run", ["--config", "nowhere.yaml"], "nowhere.yaml"),
    ("run", ["--budget.epsilon", "0.001"], "epsilon"),
    ("run", ["--student.backbone", "small_cnn"], "backbone"),
    ("run", ["--features", "hog"], "hog"),
    ("run", NETWORKS, "scale.shards"),
    ("serve", EACH, "`scale.shards` must be 0 with service.budget"),
    ("predict", ["--queries", "none.npz"], "none.npz"),
    ("predict", ["--queries", "data.npz"], "array x"),
    ("predict", [], "`x` must be"),
    ("predict", ["--custodian_dir", "null"], "custodian_dir"),
    ("predict", ["--queries", "fitting.npz", "--slot", "1"], "slot"),
    ("plan", ["--privacy.unit", "household"], "privacy.unit"),
    (
        "plan",
        ["--privacy.unit", "person", "--data.source", "mnist5k"],
        "`privacy.unit` must be row for the source 'mnist5k'",
    ),
]


@pytest.mark.parametrize(("command", "options", "mentioned"), OPTIONS)
def test_a_wrong_option_is_one_clear_line_and_charges_nothing(
    command: str, options: list[str], mentioned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write(Path())
    np.savez("q.npz", x=np.zeros((2, 99), np.float32))
    np.savez("fitting.npz", x=tiny.rows(2, 9)[0])
    line = [command, "--config", "config.yaml", *COMMANDS[command], *options]
    check_one_error(line, mentioned, capsys)
    assert not Path("a.npz").exists()
    for ledger in Path().rglob("ledger.sqlite"):
        assert {kind for kind, _ in parsed(ledger)} <= {"genesis", "extractor"}
    assert command != "serve" or not Path("custody").exists()
