"""An added record that is never sampled changes no byte outside the custodian's directory."""

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import ledgers
from tests.experiment import tiny
from tests.experiment.checks import on_the_tape
from tests.seeded_noise import SeededNoise

SEED, GAMMA = 7, 0.2


def run(
    folder: Path, extra: tuple[np.ndarray, int, int] | None, **settings: Any
) -> dict[str, bytes]:
    """All public artefacts of a run on the tape, by relative path."""
    tiny.write(folder, extra, **settings)
    shown, out = on_the_tape(folder, seed=SEED).encode(), folder / "out"
    files = [path for path in sorted(out.rglob("*")) if path.is_file()]
    return {str(path.relative_to(out)): path.read_bytes() for path in files} | {"shown": shown}


def sampled_for(draws: list[tuple[str, str]], records: np.ndarray) -> np.ndarray:
    """bool [n_draws, n_records]: whether the tape samples a record for each (identity, release)."""
    tape, ids = SeededNoise(SEED), records[np.newaxis]
    rows = [tape.inclusion(GAMMA, [identity], release, ids)[0] for identity, release in draws]
    return np.array(rows).reshape(len(draws), len(records))


@pytest.mark.slow
def test_two_neighbours(tmp_path: Path) -> None:
    before = run(tmp_path / "before", None)
    assert len(before) > 12
    assert "ledger.sqlite" in before
    assert "report.html" in before
    results = ledgers.results(tmp_path / "before/out/ledger.sqlite")
    draws = list(results)
    # It lies on a public query, in the middle of everything; only its not being sampled can keep it
    # out
    vector = tiny.rows(40, 2)[0][np.load(tmp_path / "before/out/round_1/answers.npz")["rows"][0]]

    # Both releases of every query, also those aggregations that did not happen: the screening must
    # stay what it was.
    possible = [(identity, release) for identity, _ in draws for release in ("screen", "aggregate")]
    ids = np.arange(10**6, 2 * 10**6)
    never = int(ids[~sampled_for(possible, ids).any(axis=0)][0])
    beside = run(tmp_path / "never", (vector, 1, never))
    assert sorted(beside) == sorted(before)
    assert [name for name in before if beside[name] != before[name]] == []

    first_round = draws[: sum(1 for key in draws if key[1] == "screen") // 2]
    often = int(ids[sampled_for(first_round, ids[:3000]).sum(axis=0).argmax()])
    run(tmp_path / "often", (vector, 1, often))
    after = ledgers.results(tmp_path / "often/out/ledger.sqlite")
    changed = [key for key in draws if key in after and after[key] != results[key]]
    assert sampled_for(first_round, np.array([often])).any()
    # What differs is explained by a vote; that votes count is a property test's matter
    assert sampled_for(changed, np.array([often])).all()


@pytest.mark.slow
def test_two_neighbours_under_individual_budgets(tmp_path: Path) -> None:
    """A record that no query is near, whose budget is untouched."""
    ind_knn = {"kind": "ind_knn", "threshold": 0.3, "sigma_label": 0.3}
    own = {"mechanism": ind_knn, "rounds": [{"queries": 12}], "caps": None}
    before = run(tmp_path / "before", None, **own)
    vector = np.zeros(tiny.DIMENSIONS, dtype=np.float32)
    nowhere = run(tmp_path / "nowhere", (vector, 1, 7), **own)
    assert [name for name in before if nowhere.get(name) != before[name]] == []
    assert sorted(nowhere) == sorted(before)
    query = tiny.rows(40, 2)[0][np.load(tmp_path / "before/out/round_1/answers.npz")["rows"][0]]
    near = run(tmp_path / "near", (query, 1, 7), **own)
    assert near["ledger.sqlite"] != before["ledger.sqlite"]  # the comparison can fail
    with sqlite3.connect(tmp_path / "nowhere/out/ledger.sqlite") as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        assert {name for (name,) in tables} == {"entries", "extractors", "head"}
