"""What rounds release follows from the ledger's counts and from public rows; plans of several
mechanisms; labels of several rounds."""

from pathlib import Path

import numpy as np
import pytest
import safetensors
from scipy.special import softmax

from labelwall.experiment.linear.model import with_neighbours
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.experiment.run.training import released
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
    """Recomputed from public things: cells, public rows under the round's features, released
    counts, margin and reach."""
    tiny.configure(mechanism=REVERSE | {"row_neighbours": reach}, **TWICE)
    assert run(*QUICK) == 0
    (value,) = entries("release")[0]["results"].values()
    counts = np.array(value).reshape(CELLS, tiny.CLASSES)
    features = tiny.integers(tiny.rows(40, 2)[0])
    cells = nearest_cells(features, stored("out/round_1/cells.npz")["centers"], reach)
    answers = stored("out/round_1/answers.npz")
    assert np.array_equal(answers["labels"], inherit(counts, cells, 3)[0][answers["rows"]])


def test_a_classifier_file_and_public_rows_are_enough_for_the_labels(folder: Path) -> None:
    tiny.configure(mechanism=LINEAR, **TWICE)
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
    tmp_path: Path,
) -> None:
    """Same noise, one record more, before all others: its class's count in its cell is one larger,
    in each round.

    The record sits where its class leads by far, so no label changes; then nothing but counts and
    hashes may.
    """
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
