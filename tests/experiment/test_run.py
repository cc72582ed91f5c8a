"""Whole runs: rounds, resumption, refusals; what a user meets when something is wrong."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.experiment import tiny
from tests.experiment.checks import QUICK, RUN, check_one_error, run, shown, summary
from tests.ledgers import extractors, parsed
from tests.programs.kill_runner import kills


def test_two_rounds_end_to_end_and_resumption(folder: Path, capsys) -> None:
    assert run() == 0
    told = summary()
    assert told["delta"] == 1e-5
    assert [r["asked"] for r in told["rounds"]] == [12, 12]
    # Round 2 votes in the student's features
    assert [r["extractor"] for r in told["rounds"]] == ["raw", "mlp"]
    assert len(list((folder / "out").glob("round_*/events.tfevents"))) == 2

    log = parsed(folder / "out/ledger.sqlite")
    fields = dict(extractors(folder / "out/ledger.sqlite"))
    named = [fields[body["sha256"]] for kind, body in log if kind == "extractor"]
    assert [json.loads(text)["backbone"] for text in named] == ["raw", "mlp"]
    first, second = (np.load(f"out/round_{number}/answers.npz")["rows"] for number in (1, 2))
    assert not set(first) & set(second)

    before = {p: p.read_bytes() for p in (folder / "out").rglob("*") if p.is_file()}
    assert run() == 0  # finished: nothing is asked, charged or trained again
    assert {p: p.read_bytes() for p in (folder / "out").rglob("*") if p.is_file()} == before

    command = ["audit", "out/ledger.sqlite", "--json", "--expect_head", told["ledger_head"]]
    finding = json.loads(shown(capsys, *command))
    assert finding["consistent"]
    assert (finding["epsilon"], finding["entries"]) == (told["epsilon"], len(log))


def test_a_run_folder_is_of_one_run_and_one_data_set(folder: Path, capsys) -> None:
    assert run(*QUICK) == 0
    custodian = folder / "out.custodian"  # where the private side stays
    assert {p.name for p in custodian.iterdir()} >= {"ledger.sqlite", "dataset.json"}
    assert custodian.stat().st_mode & 0o077 == 0
    assert not list((folder / "out").rglob("*embeddings*"))
    check_one_error([*RUN, *QUICK, "--seed", "1"], "seed", capsys)
    custodian.rename(folder / "elsewhere")
    assert run(*QUICK, "--run_dir", "other") == 0
    (folder / "other.custodian").rename(custodian)
    check_one_error([*RUN, *QUICK], "another data set", capsys)


@pytest.mark.parametrize("private", ["empty", "one class", "bad rows"])
def test_run_never_branches_on_private_rows(folder: Path, private: str) -> None:
    (x, y), ids = tiny.rows(200, 1), np.arange(200)
    if private == "bad rows":
        x, y = np.where(y[:, None] == 1, np.nan, x), np.where(y == 2, 99, y)
    kept = slice(0) if private == "empty" else slice(None) if private == "bad rows" else y == 0
    tiny.change(private_x=x[kept], private_y=y[kept], private_id=ids[kept])
    # Without records a query passes with probability 0.43: of 36 all fail once in 10^8, of 12 once
    # in 900.
    rounds = "[{queries: 36}, {queries: 4}]"
    assert run("--mechanism.threshold", "0", "--rounds", rounds, *QUICK) == 0
    assert [r["asked"] for r in summary()["rounds"]] == [36, 4]


@pytest.mark.slow
def test_kill_at_every_commit(tmp_path: Path) -> None:
    """SIGKILL at any commit boundary: the same command finishes it, and pays nothing twice."""
    deaths = kills("run_kill_sweep", tmp_path / "runs", 1)
    assert deaths[-1]["status"] == 0  # the sweep went on until a run was not killed any more
    assert len(deaths) > 20
    for kill in deaths:
        assert kill["resumed"] == 0, kill
        assert kill["kept"], kill  # what was answered before the kill is the answer after it
        assert kill["asked"] == 24, kill
        # Nothing answered is paid again; at most the batch in flight is
        assert kill["again"] <= 5, kill
        assert kill["exported"], kill
        assert kill["audited"] == 0, kill
    assert any(kill["again"] for kill in deaths)
    assert deaths[-1]["again"] == 0
