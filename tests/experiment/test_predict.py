"""`predict`: a file of queries in, labels, receipt and an auditor's ledger out; asked again, the
same for nothing."""

from pathlib import Path

import numpy as np
import pytest

from labelwall import pipeline
from labelwall.teacher.ledger.auditor.auditor import audit
from tests.experiment import tiny
from tests.experiment.checks import PREDICT, predict, receipt, run, stored
from tests.postgres import Server, address

IND_KNN = {"kind": "ind_knn", "threshold": 0.3, "sigma_label": 0.05}


@pytest.fixture
def folder(folder: Path) -> Path:
    tiny.configure(mechanism=IND_KNN, custodian_dir="custody", caps=None)
    np.savez(folder / "q.npz", x=tiny.rows(30, 9)[0])
    return folder


def test_a_file_of_queries_is_answered_once(folder: Path, capsys) -> None:
    assert predict() == 0
    first, paid = stored("a.npz"), receipt()
    # 22: fewer are right once in 10^37
    assert (first["labels"] == tiny.rows(30, 9)[1]).mean() > 0.7
    assert (first["outcomes"] == 0).all()
    assert (paid["asked"], paid["served"]) == (30, 0)
    assert paid["charged"] == {"individual_budgets": 1}
    assert (paid["epsilon"], paid["delta"]) == (1000.0, 1e-5)
    finding = audit(folder / "a.ledger.sqlite", expect_head=paid["ledger_head"])
    assert (finding.problems, finding.released) == ([], {"0/individual_budgets": 30})
    assert predict() == 0
    assert "30 known before" in capsys.readouterr().out
    np.testing.assert_array_equal(stored("a.npz")["labels"], first["labels"])
    assert receipt()["charged"] == {"individual_budgets": 0}


def test_the_baseline_answers_until_its_cap(folder: Path) -> None:
    naive = ["--mechanism.kind=naive_knn", "--mechanism.k=15", "--mechanism.sigma_vote=1"]
    assert predict(*naive, "--caps.asked", "20") == 0
    assert stored("a.npz")["outcomes"].tolist() == [0] * 20 + [2] * 10
    assert receipt()["charged"] == {"aggregate": 20}


def test_a_ledger_on_a_server_and_a_password_that_is_nowhere(
    folder: Path, postgres: Server, monkeypatch, capsys
) -> None:
    """In no file of the run's and the custodian's folders, in no message; a wrong address is
    refused before it is written."""
    secret = "tr0ub4dor"
    monkeypatch.setenv("PGPASSWORD", secret)
    ledger = address(postgres.schema())
    for _ in range(2):
        assert predict("--ledger", ledger) == 0
    assert "30 known before" in capsys.readouterr().out
    assert audit(folder / "a.ledger.sqlite").problems == []
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
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if secret.encode() in path.read_bytes()] == []


def test_an_anchor_that_begins_with_a_ledger_in_use_is_said(folder: Path, capsys) -> None:
    assert predict() == 0
    capsys.readouterr()
    for new in (True, False):
        assert pipeline.main([*PREDICT, "--anchor", "anchor.json"]) == 0
        assert ("there was no anchor of that name" in capsys.readouterr().err) == new
