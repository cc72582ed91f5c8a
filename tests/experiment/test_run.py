"""Whole runs, and predictions that a custodian and a student give."""

import json
from pathlib import Path

import numpy as np
import pytest

from labelwall import pipeline
from labelwall.teacher.ledger.auditor.auditor import audit
from tests.experiment import tiny
from tests.experiment.checks import (
    PREDICT,
    QUICK,
    RUN,
    check_one_error,
    predict,
    receipt,
    run,
    shown,
    stored,
    summary,
)
from tests.ledgers import extractors, parsed
from tests.postgres import address
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


IND_KNN = {"kind": "ind_knn", "threshold": 0.3, "sigma_label": 0.05}


@pytest.fixture
def with_queries(folder: Path) -> Path:
    tiny.configure(mechanism=IND_KNN, custodian_dir="custody", caps=None)
    np.savez(folder / "q.npz", x=tiny.rows(30, 9)[0])
    return folder


def test_a_file_of_queries_is_answered_once(with_queries: Path, capsys) -> None:
    assert predict() == 0
    first, paid = stored("a.npz"), receipt()
    # 22: fewer are right once in 10^37
    assert (first["labels"] == tiny.rows(30, 9)[1]).mean() > 0.7
    assert (first["outcomes"] == 0).all()
    assert (paid["asked"], paid["served"]) == (30, 0)
    assert paid["charged"] == {"individual_budgets": 1}
    assert (paid["epsilon"], paid["delta"]) == (1000.0, 1e-5)
    finding = audit(with_queries / "a.ledger.sqlite", expect_head=paid["ledger_head"])
    assert (finding.problems, finding.released) == ([], {"0/individual_budgets": 30})
    assert predict() == 0
    assert "30 known before" in capsys.readouterr().out
    np.testing.assert_array_equal(stored("a.npz")["labels"], first["labels"])
    assert receipt()["charged"] == {"individual_budgets": 0}


def test_the_baseline_answers_until_its_cap(with_queries: Path) -> None:
    naive = ["--mechanism.kind=naive_knn", "--mechanism.k=15", "--mechanism.sigma_vote=1"]
    assert predict(*naive, "--caps.asked", "20") == 0
    assert stored("a.npz")["outcomes"].tolist() == [0] * 20 + [2] * 10
    assert receipt()["charged"] == {"aggregate": 20}


def test_a_ledger_on_a_server_and_a_password_that_is_nowhere(
    with_queries, postgres, monkeypatch, capsys
) -> None:
    """A wrong address is refused before it is written."""
    secret = "tr0ub4dor"
    monkeypatch.setenv("PGPASSWORD", secret)
    ledger = address(postgres.schema())
    for _ in range(2):
        assert predict("--ledger", ledger) == 0
    assert "30 known before" in capsys.readouterr().out
    assert audit(with_queries / "a.ledger.sqlite").problems == []
    assert not Path("custody/ledger.sqlite").exists()
    guarded = ledger.replace("@", f":{secret}@")
    for options in (
        ["--ledger", guarded],
        ["--ledger", guarded, "--bugdet.epsilon", "3"],
        [f"--ledger={guarded}", "--seed", "x"],
    ):
        assert predict(*options) == 2
        assert run(*options) == 2
    shown = capsys.readouterr()
    assert "without a password" in shown.err
    assert secret not in shown.out + shown.err
    assert not Path("out").exists()
    files = [path for path in with_queries.rglob("*") if path.is_file()]
    assert [path for path in files if secret.encode() in path.read_bytes()] == []


def test_an_anchor_that_begins_with_a_ledger_in_use_is_said(with_queries: Path, capsys) -> None:
    assert predict() == 0
    capsys.readouterr()
    for new in (True, False):
        assert pipeline.main([*PREDICT, "--anchor", "anchor.json"]) == 0
        assert ("there was no anchor of that name" in capsys.readouterr().err) == new
