"""Settings that fit no kind of question or label are one clear line."""

from __future__ import annotations

import pytest

from labelwall import pipeline
from tests.experiment.test_kinds import RUN, VALUES, folder, write

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
            ("mechanism", "{kind: reverse_knn, cells: 41, sigma: 0.5}", "at most 40"),
            ("mechanism", "{kind: reverse_knn, neighbours: 0}", "mechanism.neighbours"),
            ("mechanism", "{kind: reverse_knn, margin: .nan}", "mechanism.margin"),
            ("mechanism", "{kind: reverse_knn, reach: 0}", "mechanism.reach"),
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
    assert pipeline.main(RUN) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert mentioned in line
