"""A private score by thresholds, in whole runs with hardly any noise."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from labelwall import load, pipeline
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.experiment.run.scoring import decided
from labelwall.student import student_model
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.wall.features.embedder import Embedder
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.networks import build, to_safetensors
from tests.experiment import checks, tiny
from tests.experiment.test_kinds import bits, write

SCORE = "{share: 0.05, sigma: 0.1, thresholds: 3}"


def run(attributes: bool, unit: str) -> tuple[Any, np.ndarray, np.ndarray]:
    """(the model, probabilities of what its score ranks, the truth) on the private rows."""
    kind = "sums of attributes" if attributes else "sums"
    write(kind, privacy=f"{{unit: {unit}}}", evaluate=SCORE, rounds="[{}]")
    (x, classes), truth = tiny.rows(200, 1), {}
    if not attributes:
        for part in ("private", "public", "test"):
            with np.load("data.npz") as stored:
                truth[f"{part}_y"] = (stored[f"{part}_y"] > 0).astype(int)
    if unit == "person":
        truth["private_person"] = np.array([f"p{row % 100}" for row in range(200)])
    tiny.change(**truth)
    assert checks.run() == 0
    model = load("out")
    chances, right = (
        model.predict_proba(x),
        bits(x, classes) if attributes else classes[:, None] > 0,
    )
    return model, chances if attributes else chances[:, 1:], right.astype(bool)


@pytest.mark.parametrize(("attributes", "unit"), [(False, "row"), (True, "person")])
def test_released_measures_are_those_of_the_private_rows(attributes: bool, unit: str) -> None:
    """Persons have two rows each, so that each row counts alike. A score is found again."""
    model, chances, truth = run(attributes, unit)
    told = model.summary.private_score
    assert told is not None
    assert list(told.thresholds) == (["left", "up & <b>", "far"] if attributes else ["1"])
    predicted = chances > 0.5
    assert told.right == pytest.approx((predicted == truth).mean(), abs=0.02)
    for place, one in enumerate(told.thresholds.values()):
        score, of = chances[:, place], truth[:, place]
        assert abs(one.auroc[0] - roc_auc_score(of, score)) <= one.auroc[2] + 0.02
        assert [table.threshold for table in one.tables if table.threshold == 0.5] == [0.5]
        assert len(one.tables) == 3
        for table in one.tables:
            above = score > table.threshold
            assert table.sensitivity[0] == pytest.approx(above[of].mean(), abs=0.03)
            assert table.specificity[0] == pytest.approx((~above)[~of].mean(), abs=0.03)
        both = (predicted[:, place] == of)[of].mean(), (predicted[:, place] == of)[~of].mean()
        assert one.balanced_accuracy[0] == pytest.approx(np.mean(both), abs=0.02)
    assert "AUROC" in told.text()
    assert audit(Path("out/ledger.sqlite")).problems == []
    folder = RunFolder(Path("out"))
    for page in (folder.report.read_text(), folder.card.read_text()):
        assert page.count("{:.3f} ± {:.3f}".format(*one.tables[0].specificity)) >= 1
        assert "up & <b>" not in page or page.startswith("---")
    head = model.summary.ledger_head
    for path in (folder.summary, folder.report, *Path("out").glob("round_*/*_score.json")):
        path.unlink()  # as if killed between the answer and its record
    assert checks.run() == 0
    again = load("out").summary
    assert (again.private_score, again.ledger_head) == (told, head)


@pytest.mark.parametrize(("name", "shape"), [("mlp", (4,)), ("small_cnn", (16, 16, 1))])
@pytest.mark.parametrize(("kind", "outputs"), [("class", 2), ("attributes", 3)])
def test_a_row_has_the_number_of_thresholds_that_its_score_is_above(
    name, shape, kind, outputs
) -> None:
    rng, images = np.random.default_rng(1), len(shape) == 3
    rows = rng.integers(0, 256, (60, *shape)).astype(np.uint8 if images else np.float32)
    network = build(name, input_shape=shape, num_classes=outputs)
    scale = ((0.5,), (0.2,)) if images else ((), ())
    student = ExtractorSpec(name, shape, outputs, to_safetensors(network), *scale)
    said = student_model.outputs(student, rows).astype(np.float64)
    scores = said[:, 1:] - said[:, :1] if kind == "class" else said
    edges = np.quantile(scores, [0.1, 0.1, 0.5, 0.8], axis=0).T.astype(np.float32)
    edges[:, 2] = 0.0
    features, finite = Embedder(decided(student, kind, np.sort(edges))).embed(rows)
    assert finite.all()
    levels = (scores[:, :, None] > edges).sum(axis=2)
    assert np.array_equal(features[:, : scores.shape[1]], levels)


MISTAKES = [
    ("sums of values", {"evaluate": SCORE}, "0 for values"),
    ("sums", {"evaluate": SCORE}, "0 for values and for more than two classes"),
    ("sums", {"evaluate": "{thresholds: 3}"}, "0 without evaluate.share"),
    ("sums of attributes", {"evaluate": "{share: 0.1, thresholds: 64}"}, "evaluate.thresholds"),
    ("sums of attributes", {"evaluate": "{share: 0.1, thresholds: -1}"}, "evaluate.thresholds"),
]


@pytest.mark.parametrize(("name", "settings", "mentioned"), MISTAKES)
def test_a_mistake_is_one_clear_line_and_opens_nothing(name, settings, mentioned, capsys) -> None:
    write(name, **settings)
    checks.check_one_error(list(checks.RUN), mentioned, capsys)
    assert not Path("custody").exists()


def test_named_classes_are_refused_with_the_price(capsys) -> None:
    data = "{source: arrays, path: data.npz, classes: [a, b, c]}"
    write("sums", evaluate=SCORE, data=data)
    checks.check_one_error(["plan", "--config", "config.yaml"], "more than two classes", capsys)
    write("sums of attributes", evaluate=SCORE)
    assert pipeline.main(["plan", "--config", "config.yaml"]) == 0
    assert "by 3 thresholds" in capsys.readouterr().out
