"""What rounds release, and what a student is taught beside the public rows, in whole runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from scipy.special import softmax

from labelwall.experiment.run.run_folder import RunFolder
from labelwall.student import learning as training
from labelwall.student.batches import Lesson
from labelwall.student.learning import released
from labelwall.student.linear.linear_model import with_neighbours
from labelwall.wall.matrices import inherit, nearest_cells
from labelwall.wall.messages import Outcome
from tests import ledgers
from tests.experiment import tiny
from tests.experiment.checks import QUICK, on_the_tape, run, stored

CELLS = 6
REVERSE = {"kind": "reverse_knn", "centroids": CELLS, "neighbours": 1, "sigma": 0.5, "margin": 3}
LINEAR = {"kind": "private_linear", "steps": 2, "noise_multiplier": 0.5}
TWICE = {"rounds": [{}, {}], "caps": None, "batch_size": 16}


def entries(kind: str, folder: Path = Path()) -> list[dict]:
    return ledgers.contents(folder / "out/ledger.sqlite", kind)


@pytest.mark.parametrize("reach", [1, 3])
def test_answers_follow_from_the_ledgers_counts_alone(folder: Path, reach: int) -> None:
    """Recomputed from cells, public rows under the round's features, counts, margin and reach."""
    tiny.configure(mechanism=REVERSE | {"row_neighbours": reach}, **TWICE)
    assert run(*QUICK) == 0
    (value,) = entries("release")[0]["results"].values()
    counts = np.array(value).reshape(CELLS, tiny.CLASSES)
    features = tiny.integers(tiny.rows(40, 2)[0])
    cells = nearest_cells(features, stored("out/round_1/cells.npz")["centers"], reach)
    answers = stored("out/round_1/answers.npz")
    assert np.array_equal(answers["labels"], inherit(counts, cells, 3)[0][answers["rows"]])


@pytest.mark.parametrize("balanced", [False, True])
def test_a_classifier_file_and_public_rows_are_enough_for_the_labels(
    folder: Path, balanced: bool
) -> None:
    tiny.configure(mechanism=LINEAR, balanced=balanced, **TWICE)
    assert run(*QUICK) == 0
    with safetensors.safe_open("out/round_1/linear.safetensors", "numpy") as file:
        weights, metadata = file.get_tensor("weights"), file.metadata()
    assert metadata["extractor"] == entries("extractor")[0]["sha256"]
    answers = stored("out/round_1/answers.npz")
    features = tiny.integers(tiny.rows(40, 2)[0][answers["rows"]])
    inputs = np.column_stack([features, np.full(len(features), float(metadata["bias"]))])
    chances = softmax(inputs @ weights, axis=1)
    nearest = with_neighbours(lambda _: chances, features)
    assert np.array_equal(nearest(features).argmax(axis=1), answers["labels"])


def test_an_added_record_shows_in_one_count_and_in_nothing_that_does_not_follow_from_it(
    tmp_path,
) -> None:
    """The record sits where its class leads by far, so no label changes; then nothing but counts
    and hashes may."""
    extra = (3 * np.eye(1, tiny.DIMENSIONS, dtype=np.float32)[0], 0, 1)
    for name, added in (("without", None), ("with", extra)):
        tiny.write(tmp_path / name, added, mechanism=REVERSE, **TWICE)
    on_the_tape(tmp_path / "without", tmp_path / "with")
    counts = [
        [np.array(*e["results"].values()) for e in entries("release", tmp_path / name)]
        for name in ("without", "with")
    ]
    for without, added in zip(*counts, strict=True):
        difference = added - without
        assert sorted(difference.tolist()) == [0] * (CELLS * tiny.CLASSES - 1) + [1]
        assert int(difference.argmax()) % tiny.CLASSES == 0
    outs = [tmp_path / name / "out" for name in ("without", "with")]
    names = [{path.relative_to(out) for path in out.rglob("*")} for out in outs]
    assert names[0] == names[1]
    for name in ("cells.npz", "answers.npz", "student.safetensors"):
        for number in (1, 2):
            pair = [(out / f"round_{number}" / name).read_bytes() for out in outs]
            assert pair[0] == pair[1], (name, number)


def test_a_later_rounds_abstention_counts(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.save_answers(1, np.array([0, 1, 2]), np.array([1, 2, 0]), np.zeros(3, dtype=np.uint8))
    outcomes = np.array([Outcome.ABSTAINED, Outcome.ANSWERED, Outcome.CAP_REACHED], dtype=np.uint8)
    folder.save_answers(2, np.array([2, 1, 0]), np.array([-1, 1, -1]), outcomes)
    assert released(folder, 2, 4)[0].tolist() == [1, 1, -1, -1]  # row 0 was refused
    assert released(folder, 2, 4, worse={2})[0].tolist() == [1, 2, 0, -1]


BY_SUMS = "--mechanism.kind=private_linear --mechanism.steps=2 --mechanism.noise_multiplier=0.5"
VOTES = "--mechanism.kind=reverse_knn --mechanism.centroids=6 --mechanism.sigma=0.5"
Taught = list[tuple[np.ndarray, np.ndarray, np.ndarray]]


@pytest.fixture
def taught(folder: Path, monkeypatch) -> Taught:
    """(inputs, labels, probabilities) that the training has seen."""
    tiny.configure(caps=None, rounds=[{}])
    monkeypatch.setattr(training, "VIRTUAL_ROWS", 500)
    monkeypatch.setattr(training, "FEW_PUBLIC", 0)
    found: Taught = []
    learns = training.train

    def note(config: Any, lesson: Lesson, **rest: Any) -> Any:
        found.append((lesson.pool.inputs, lesson.labels, lesson.chances))
        return learns(config, lesson, **rest)

    monkeypatch.setattr(training, "train", note)
    return found


@pytest.mark.parametrize("backbone", ["mlp", "linear"])
def test_a_student_of_vectors_learns_what_the_classifier_says_of_virtual_rows(
    taught, backbone
) -> None:
    assert run(*QUICK, *BY_SUMS.split(), "--student.steps=5", f"--student.backbone={backbone}") == 0
    ((inputs, labels, soft),) = taught  # once in a run
    public = tiny.rows(40, 2)[0]
    np.testing.assert_array_equal(inputs[:40], public)
    assert len(inputs) == len(labels) == len(soft) == 540
    rows = stored("out/round_1/answers.npz")["rows"]
    assert np.array_equal(soft[rows], np.load("out/round_1/probabilities.npy"))
    with safetensors.safe_open("out/round_1/linear.safetensors", "numpy") as file:
        weights, bias = file.get_tensor("weights"), float(file.metadata()["bias"])
    inputs = np.column_stack([tiny.integers(inputs[40:]), np.full(500, bias)])
    expected = softmax(inputs @ weights, axis=1)
    assert abs(soft[40:] - expected).max() < 0.05  # a rounded entry may be another
    assert np.median(abs(soft[40:] - expected)) < 1e-5
    assert np.array_equal(labels[40:], soft[40:].argmax(axis=1))


@pytest.mark.parametrize("settings", [f"{BY_SUMS} --student.soft=false", VOTES])
def test_other_students_see_the_public_rows_alone(taught: Taught, settings: str) -> None:
    assert run(*QUICK, *settings.split(), "--student.steps=5") == 0
    assert [len(part) for part in taught[0][:2]] == [40, 40]


def test_virtual_rows_are_public_ones_moved_by_parts_of_differences(monkeypatch) -> None:
    rows = np.array([[0.0, 5.0], [1.0, 5.0]], dtype=np.float32)
    found = training.virtual_rows(rows, 3)
    assert (found.shape, found.dtype) == ((training.VIRTUAL_ROWS, 2), np.float32)
    assert (found[:, 1] == 5).all()
    assert (found[:, 0].min(), found[:, 0].max()) == pytest.approx((-1, 2), abs=0.01)
    assert np.array_equal(found, training.virtual_rows(rows, 3))
    assert not np.array_equal(found, training.virtual_rows(rows, 4))
    monkeypatch.setattr(training, "MAX_ENTRIES", 100)
    assert training.virtual_rows(rows, 3).shape == (50, 2)
