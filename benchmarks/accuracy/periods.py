r"""Records that arrive in twelve parts, epsilon 2 in all: accuracy by month.

    python benchmarks/accuracy/periods.py --scratch FOLDER --out FILE
    python benchmarks/accuracy/periods.py --scratch FOLDER --out FILE --rows FEATURES.npz

The rows are shift.py's docstrings; `--rows` takes other vectors `x` with classes `y` (npz). 6,000
are private, of which a twelfth more is there each month; 800 are public and 2,000 test rows, drawn
by `--seeds`. The mechanism is private_linear on `--axes`, its steps the default. `--reserve`: the
updates' share of the budget; without it every period has as much.

A line has the share of the test rows on which the released classifier is right: after each update
by a plan of twelve periods, and by single runs on month one and on all records, each with the
whole epsilon. A line of JSON is appended for each fit.
"""

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import labelwall as lw
from labelwall.benchmarks.accuracy.shift import texts
from labelwall.benchmarks.shared.record import add_record, percent, record
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.student.linear.stored import stored_layer
from labelwall.student.round_files import CLASSIFIER
from labelwall.wall.features.embedder import Embedder

PERIODS, EPSILON = 12, 2.0
SHOWN = (1, 2, 3, 6, 9, 12)  # months of the result's file
PRIVATE, PUBLIC, TEST = 6_000, 800, 2_000
# Hardly trained: the released classifier is what is measured.
STUDENT = {"backbone": "linear", "steps": 20, "batch_unlabelled": 16, "doubtful_folds": 0}


def fits(
    x: np.ndarray, y: np.ndarray, axes: int, reserve: float | None, seed: int, scratch: Path
) -> Iterator[dict]:
    """(kind, month, seed, axes, reserve, share of the test rows that is right) of each fit."""
    rows = np.random.default_rng(seed).permutation(len(x))
    private, public = rows[:PRIVATE], rows[PRIVATE : PRIVATE + PUBLIC]
    test = rows[PRIVATE + PUBLIC :][:TEST]

    def fit(name: str, count: int, periods: int) -> lw.Model:
        for folder in (scratch / name, scratch / f"{name}.custody"):
            shutil.rmtree(folder, ignore_errors=True)
        return lw.fit(
            lw.Data((x[private[:count]], y[private[:count]]), x[public], (x[test], y[test])),
            EPSILON,
            budget={"periods": periods, "reserve": reserve if periods > 1 else None},
            run_dir=scratch / name,
            custody=scratch / f"{name}.custody",
            mechanism={"kind": "private_linear", "axes": axes},
            rounds=[{}],  # which leaves nothing to a rehearsal
            features="raw",
            student=STUDENT,
            quiet=True,
        )

    def line(kind: str, month: int, model: lw.Model) -> dict:
        folder, rounds = RunFolder(model.path), model.summary.rounds
        found = Embedder(folder.extractor(rounds[-1].features)).embed(x[test])[0]
        last = stored_layer(folder.round(len(rounds)) / CLASSIFIER)
        assert last is not None
        classifier = float((last.probabilities(found).argmax(axis=1) == y[test]).mean())
        about = {"kind": kind, "month": month, "seed": seed, "axes": axes, "reserve": reserve}
        return about | {"right": classifier}

    yield line("month one", 1, fit("first", PRIVATE // PERIODS, 1))
    yield line("once", PERIODS, fit("once", PRIVATE, 1))
    model = fit("periods", PRIVATE // PERIODS, PERIODS)
    yield line("update", 1, model)
    for month in range(2, PERIODS + 1):
        there = private[: PRIVATE * month // PERIODS]
        model = model.update((x[there], y[there]), quiet=True)
        yield line("update", month, model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--axes", type=int, default=64)
    parser.add_argument("--reserve", type=float)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    add_record(parser)
    given = parser.parse_args()
    if given.rows is None:
        x, y = texts()
    else:
        with np.load(given.rows) as stored:
            x, y = stored["x"].astype(np.float32), stored["y"].astype(np.int64)
    measured = dict[tuple[str, int], dict[int, float | None]]()
    for seed in given.seeds:
        for entry in fits(x, y, given.axes, given.reserve, seed, given.scratch):
            with given.out.open("a") as file:
                file.write(json.dumps(entry) + "\n")
            print(f"seed {seed}, {entry['kind']}, month {entry['month']}: {entry['right']:.1%}")
            updates = f"`--reserve {given.reserve}`" if given.reserve else "equal parts"
            budget = updates if entry["kind"] == "update" else "the whole epsilon once"
            known = measured.setdefault((budget, seed), {})
            known[entry["month"]] = percent([entry["right"]])
    if given.record:
        name = given.rows.stem if given.rows else "docstrings"
        rows = [[name, *key, *map(known.get, SHOWN)] for key, known in measured.items()]
        columns = ("rows", "budget", "seed", *map(str, SHOWN))
        record("periods", columns, rows, keys=3, seeds=given.seeds)


if __name__ == "__main__":
    main()
