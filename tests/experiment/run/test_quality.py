"""Metrics, the private score, and what labels are worth by estimate."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score
from torchmetrics.functional.classification import (
    binary_calibration_error,
    multiclass_calibration_error,
)

from labelwall.experiment.run import lines
from labelwall.experiment.run.scoring import decided, noisy_shares, promised
from labelwall.experiment.run.summary import PrivateScore, Summary
from labelwall.student import measures
from labelwall.student.asking import estimates
from labelwall.student.held_out import Cleaned
from labelwall.student.results import Estimate, best_round, read, worse, write
from labelwall.student.student_model import outputs
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.errors import LabelwallError
from labelwall.wall.features.embedder import Embedder
from labelwall.wall.label_kinds import AttributeLabels, ClassLabels, ValueLabels
from labelwall.wall.matrices import MAX_ENTRY, inherit
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.networks import build, to_safetensors
from tests.experiment.results import made_round, made_summary
from tests.programs import environment


@pytest.mark.parametrize("space", [ClassLabels.of(4), AttributeLabels.of(2)])
def test_the_calibration_error_is_torchmetrics(space: ClassLabels | AttributeLabels) -> None:
    """That of attributes counts each answer."""
    rng, count = np.random.default_rng(5), space.outputs
    outputs, classes = rng.normal(size=(500, count)) * 2, space.kind == "class"
    truth = rng.integers(0, 4, 500) if classes else rng.integers(0, 2, (500, count))
    shares = space.probabilities(outputs / 1.3)
    certainty, right = space.certainty(shares), space.predict(outputs) == truth
    oracle = torch.from_numpy
    if classes:
        asked = oracle(shares), oracle(truth)
        expected = multiclass_calibration_error(*asked, num_classes=4, n_bins=measures.BINS)
    else:
        asked = oracle(certainty).flatten(), oracle(right).flatten()
        expected = binary_calibration_error(*asked, n_bins=measures.BINS)
    assert measures.calibration_error(certainty, right) == pytest.approx(float(expected), abs=1e-5)


def test_a_certainty_of_one_has_a_bin_and_no_answers_have_no_error() -> None:
    assert measures.calibration_error(np.array([1.0, 0.0]), np.array([True, False])) == 0.0
    assert measures.calibration_error(np.zeros(0), np.zeros(0)) is None


@pytest.mark.parametrize(
    ("right", "rows", "named"),
    [([90, 80], [100, 100], False), ([90, 1], [100, 10], True), ([95, 40], [100, 100], True)],
)
def test_a_class_that_accuracy_hides_is_named(right, rows, named) -> None:
    confusion = [[right[0], rows[0] - right[0], 0], [rows[1] - right[1], right[1], 0], [0, 0, 0]]
    truth = np.repeat([0, 1], rows)
    predicted = np.repeat([0, 1, 0, 1], [*confusion[0][:2], *confusion[1][:2]])
    balanced, worst = lines.by_class(made_round(confusion=confusion), ClassLabels.of(3))
    assert balanced == pytest.approx(balanced_accuracy_score(truth, predicted))
    assert worst == min(r / n for r, n in zip(right, rows, strict=True))
    summary = made_summary(
        test_accuracy=sum(right) / sum(rows), balanced_accuracy=balanced, worst_class=worst
    )
    assert bool(lines.uneven(summary)) == named
    assert ("worst class" in lines.result_line(summary, Path())) == named


def test_a_class_that_hardly_shows_is_named_unless_test_rows_or_the_estimate_know_it() -> None:
    known = Estimate(0.5, 0.1, "counts", few={str(n): 3 for n in range(300)})
    hidden, many = replace(known, why="the noise hides it"), ClassLabels.of(300)

    def said(estimate: Estimate, right: int, space: ClassLabels = many, rows: int = 10) -> str:
        counts = np.diag([right] * len(space.names))
        counts[:, 0] += rows - right
        return lines.few_line(made_round(estimate=estimate, confusion=counts.tolist()), space)

    line = said(known, 0, rows=0)  # no test rows
    assert "9 (about 3) and 290 more. Their labels" in line
    assert "10 " not in line.partition("more")[0]
    assert [bool(said(hidden, right)) for right in (4, 5, 10)] == [True, False, False]
    assert not said(replace(known, right=0.9), 0)
    one, ten = replace(known, right=0.9, few={"7": 3}), ClassLabels.of(10)
    assert not said(replace(one, right=0.99), 0, ten)
    assert ": 7 (about 3). Their" in said(one, 0, ten)
    assert not said(one, 6, ten)
    assert lines.few_line(made_round(), ten) == ""


def test_a_student_that_says_few_classes_is_said() -> None:
    four = ClassLabels.of(4)

    def said(predicted: list[int]) -> str:
        counts = np.zeros((4, 4), dtype=int)
        counts[np.arange(4), predicted] = 5
        return lines.collapsed_line(made_round(confusion=counts.tolist()), four)

    assert said([0, 0, 0, 0]).startswith("the student says only 1 of the 4 classes")
    assert "only 2 of the 4" in said([0, 0, 1, 1])
    assert said([0, 0, 1, 2]) == ""
    assert lines.collapsed_line(made_round(), ClassLabels.of(3)) == ""
    assert lines.collapsed_line(made_round(), ValueLabels(0.0, 1.0)) == ""


def test_values_have_no_classes() -> None:
    counts = made_round(confusion=[[1, 0], [0, 1]])
    assert lines.by_class(counts, ValueLabels(low=0.0, high=1.0)) == (None, None)
    attributes = made_round(confusion=[[[1, 0], [0, 1]]])
    assert lines.by_class(attributes, AttributeLabels.of(1)) == (None, None)
    assert lines.uneven(made_summary(test_accuracy=0.5)) == ""


def test_the_error_is_that_of_the_noise() -> None:
    """Against draws; counts that do not show above the noise tell nothing."""
    rng, noise = np.random.default_rng(0), 18.0
    drawn = [
        noisy_shares(*(np.array([700.0, 300.0]) + rng.normal(0, noise, 2)), noise)[0]
        for _ in range(4000)
    ]
    share, error = noisy_shares(np.array(700.0), np.array(300.0), noise)
    assert float(share) == pytest.approx(0.7)
    assert np.std(drawn) == pytest.approx(float(error), rel=0.05)
    assert np.isinf(noisy_shares(np.array(30.0), np.array(10.0), noise)[1])


@pytest.mark.parametrize(("name", "shape"), [("mlp", (5,)), ("small_cnn", (16, 16, 1))])
def test_an_extractor_of_decisions_says_what_the_student_predicts(name, shape) -> None:
    rng = np.random.default_rng(1)
    images = len(shape) == 3
    rows = rng.integers(0, 256, (40, *shape)).astype(np.uint8 if images else np.float32)
    network = build(name, input_shape=shape, num_classes=3)
    mean, std = ((0.5,), (0.2,)) if images else ((), ())
    student = ExtractorSpec(name, shape, 3, to_safetensors(network), mean, std)
    features, finite = Embedder(decided(student, "class")).embed(rows)
    assert finite.all()
    predicted = outputs(student, rows).argmax(axis=1)
    assert np.array_equal(features, MAX_ENTRY * np.eye(3, dtype=np.int8)[predicted])


@pytest.mark.parametrize("kind", ["attributes", "value"])
def test_decisions_of_attributes_and_values_are_those_of_the_student(kind: str) -> None:
    outputs_, labels = (9, "attributes") if kind == "attributes" else (1, "value")
    rows = np.random.default_rng(2).normal(size=(60, 4)).astype(np.float32)
    network = build("mlp", input_shape=(4,), num_classes=outputs_)
    network.head.weight.data *= 9
    student = ExtractorSpec("mlp", (4,), outputs_, to_safetensors(network))
    features, _ = Embedder(decided(student, labels)).embed(rows)
    said = outputs(student, rows)
    if kind == "attributes":
        assert np.array_equal(features > 0, said > 0)
        assert (features != 0).all()
    else:
        assert np.array_equal(features[:, 0], np.rint(63 * said[:, 0].clip(-1, 1)))


KINDS = "class", "attributes", "value"


def test_the_question_of_a_score_is_the_same_in_another_process() -> None:
    """Its name is the extractor's hash, so a killed run that asks again finds what it paid for."""
    network = build("mlp", input_shape=(4,), num_classes=3)
    student = ExtractorSpec("mlp", (4,), 3, to_safetensors(network), scale=2.0)
    program = (
        "import sys, torch; from labelwall.wall.messages import ExtractorSpec;"
        "from labelwall.experiment.run.scoring import decided; torch.manual_seed(7);"
        "spec = ExtractorSpec('mlp', (4,), 3, sys.stdin.buffer.read(), scale=2.0);"
        f"print(*(decided(spec, kind).sha256() for kind in {KINDS}))"
    )
    there = subprocess.run(
        [sys.executable, "-c", program],
        input=student.weights,
        env=environment(),
        capture_output=True,
        check=True,
    )
    assert there.stdout.decode().split() == [decided(student, kind).sha256() for kind in KINDS]


def test_the_score_of_persons_is_the_mean_of_their_shares_and_no_more_is_promised() -> None:
    """Without noise, of 40 classes; 20 rows a person lose nothing to rounding but 1 / parts."""
    rng, parts, classes = np.random.default_rng(3), 4096, 40
    sizes = rng.integers(1, 20, 300)
    persons, labels = np.repeat(np.arange(300), sizes), rng.integers(0, classes, sizes.sum())
    for chance in (0.1, 0.5, 0.95):
        good = rng.random(len(labels)) < chance
        said = np.where(good, labels, (labels + 1) % classes)
        features = 63 * np.eye(classes, dtype=np.int8)[said]
        index, cells = ExactIndex(features, np.arange(len(said)), persons), 63 * np.eye(classes)
        voters = Voters(index, labels, classes, cells.astype(np.int8)[None])
        right, wrong = voters.right_votes("class", parts).reshape(2, classes) / parts
        assert right.sum() + wrong.sum() == 300
        share, _ = noisy_shares(right.sum(), wrong.sum(), 0.0)
        truth = (np.bincount(persons, good) / sizes).mean()
        assert truth - 1 / parts < share <= truth
        assert promised(float(share), 0.1, 1e-5) < truth


def test_the_promise_is_the_better_of_both_directions() -> None:
    assert promised(0.97, 1.0, 0.0) == pytest.approx(1 - math.e * 0.03)
    assert promised(0.4, 1.0, 0.0) == pytest.approx(0.4 / math.e)
    assert promised(0.5, math.inf, 1e-5) < 1e-99


def test_a_score_that_noise_hides_is_said_to_be_unknown() -> None:
    score = PrivateScore(right=None, error=None, by_class={}, epsilon=0.05, least=None)
    assert "unknown" in score.text()


def test_a_score_says_its_noise_and_how_optimistic_it_may_be() -> None:
    score = PrivateScore(right=0.784, error=0.011, by_class={}, epsilon=0.05, least=0.7)
    assert "78.4% +- 1.1 right, at most 8.4 points more" in score.text()
    of_values = replace(score, rmse=(0.31, 0.01, 0.4))
    assert "RMSE 0.31 +- 0.01, on fresh ones at most 0.4 " in of_values.text()


@pytest.mark.parametrize("noise", [1.0, 10.0, 40.0, 200.0])
@pytest.mark.parametrize("purity", [0.3, 0.6, 0.9])
def test_counts_tell_how_many_votes_the_labels_have(purity: float, noise: float) -> None:
    """Never better by chance. Of 100 votes in a cell ``purity`` fall on its own class, the rest
    evenly on the four others."""
    true, rows = np.full((40, 5), 25 * (1 - purity)), np.repeat(np.arange(40), 3)[:, None]
    true[np.arange(40), np.arange(40) % 5] = 100 * purity
    true = np.rint(true).astype(np.int64)
    found, real = [], []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        noisy = true + np.rint(rng.normal(0, noise, true.shape)).astype(np.int64)
        labels, _ = inherit(noisy, rows, 0.0)
        real.append((true[rows[:, 0], labels] / true.sum(axis=1)[rows[:, 0]]).mean())
        found.append(estimates.by_counts(noisy, rows, 0.0, noise).right)
    assert np.mean(found) <= np.mean(real) + 0.05  # the labels scored have more noise
    if noise <= 10:
        assert np.mean(found) == pytest.approx(np.mean(real), abs=0.03)
    assert estimates.by_counts(true - 200, rows, 0.0, noise).right == 0.0  # no votes are no error


def of(share: float | None, by: str = estimates.COUNTS) -> estimates.Estimate | None:
    return None if share is None else estimates.Estimate(share, 0.01, by)


@pytest.mark.parametrize(
    ("known", "kept"),
    [
        ([of(0.5)], 1),
        ([of(0.5), of(0.7)], 2),
        ([of(0.58), of(0.29)], 1),
        ([of(0.58), of(0.57)], 2),  # as good as the first, by what is known
        ([of(0.58), of(0.29), of(0.7)], 3),
        ([of(0.58), of(0.29), of(0.3)], 1),
        ([of(None), of(0.2)], 2),
        ([of(0.9), of(None)], 2),  # nothing is known of it
        ([of(0.9), of(0.2, estimates.AGREEMENT)], 2),  # another measure
    ],
)
def test_the_last_round_that_is_not_worse_is_kept(known, kept: int) -> None:
    assert best_round(known) == kept


def test_an_estimate_that_noise_moves_says_nothing() -> None:
    """It still has a place among rounds, where it is worse than none."""
    sure = np.full(400, 0.8)
    narrow, wide = (
        estimates.by_probabilities(sure, (0.77, 0.83)),
        estimates.by_probabilities(sure, (0.6, 0.95)),
    )
    assert (narrow.known, narrow.text()) == (True, "about 80% (73 to 87%) right by probabilities")
    assert (wide.known, wide.text()) == (False, "unknown (the noise hides how sure labels may be)")
    assert wide.error > 0.17
    assert narrow.error == pytest.approx(0.036, abs=0.001)
    assert not worse(wide, narrow)
    assert narrow.range == pytest.approx((0.8 - 2 * narrow.error, 0.8 + 2 * narrow.error))
    sure = replace(narrow, right=0.99, error=0.01)
    assert sure.range == pytest.approx((0.92, 1))
    assert sure.text() == "about 99% (92 to 100%) right by probabilities"


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    estimate = estimates.by_agreement(Cleaned(np.zeros(3), 0.75, 400))
    assert estimate is not None
    assert estimate.text() == "about 75% consistent by cross-validation"
    summary = made_summary(rounds=(made_round(estimate=estimate), made_round()))
    write(summary, path := tmp_path / "summary.json")
    assert read(Summary, path) == summary
    path.write_text(path.read_text().replace('"asked": 10', '"asked": "many"', 1))
    with pytest.raises(LabelwallError, match=r"summary.json is damaged\. Delete it"):
        read(Summary, path)
    assert estimates.by_agreement(Cleaned(np.zeros(3))) is None
