"""Whole runs, and predictions that a custodian and a student give."""

import json
from pathlib import Path

import numpy as np
import pytest

import labelwall as lw
from labelwall import pipeline
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.student.asking import asking_features
from labelwall.student.round_files import FEATURES
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

    after = {"report.html", "MODEL_CARD.md"}
    written = [p for p in (folder / "out").rglob("*") if p.name not in after]
    assert len({p.stat().st_mtime for p in written}) == 1  # of folders, too
    others = [p for p in folder.rglob("*") if p.is_file() and folder / "out" not in p.parents]
    assert written[0].stat().st_mtime not in {p.stat().st_mtime for p in others}

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


def test_other_test_rows_are_scored_at_no_charge_and_without_training(folder: Path, capsys) -> None:
    assert run(*QUICK) == 0
    before = {p: p.read_bytes() for p in folder.glob("out/round_*/*.safetensors")}
    charges = (folder / "out/ledger.sqlite").read_bytes()
    x, y = tiny.rows(50, 8)
    tiny.change(test_x=x, test_y=(y + 1) % 3)
    text = shown(capsys, "run", "--config", "config.yaml", "--run_dir", "out", *QUICK)
    assert "other test rows" in text
    assert "private" not in text
    told = summary()
    assert told["test_accuracy"] == pytest.approx(lw.load("out").score(x, (y + 1) % 3))
    assert told["test_accuracy"] < 0.5
    assert told["test_rows"] == 50
    assert {p: p.read_bytes() for p in before} == before
    assert (folder / "out/ledger.sqlite").read_bytes() == charges
    text = shown(capsys, "run", "--config", "config.yaml", "--run_dir", "out", *QUICK)
    assert "other test rows" not in text


def test_a_damaged_file_is_named_and_made_again_at_no_charge(folder: Path, capsys) -> None:
    mechanism = {"kind": "private_linear", "steps": 2}
    tiny.configure(mechanism=mechanism, caps=None, rounds=[{}, {}])
    assert run(*QUICK) == 0
    entries = len(parsed(folder / "out/ledger.sqlite"))
    kept = folder / f"out/round_{summary()['best_round']}"
    first, last = (folder / f"out/round_{number}" for number in (1, 2))
    results = [kept / name for name in ("training_labels.npy", "student.safetensors")]
    files = [first / name for name in ("answers.npz", "metrics.json")]
    files += [first / "linear.safetensors", first / "probabilities.npy", last / "weights_1.npz"]
    for path in (folder / "out/summary.json", *results, *files):
        if path in files:
            (last / "metrics.json").unlink()  # the second round is to be made, and reads the first
        content = path.read_bytes()
        for damaged in (b"", content[: len(content) // 2]):
            path.write_bytes(damaged)
            check_one_error(
                [*RUN, *QUICK], f"{path.relative_to(folder)} is damaged. Delete", capsys
            )
        for each in (path, path.with_name("metrics.json")):
            each.unlink(missing_ok=True)
        assert run(*QUICK) == 0
        assert len(parsed(folder / "out/ledger.sqlite")) == entries
        assert lw.audit("out/ledger.sqlite").consistent


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


FINISHED = {"MODEL_CARD.md", "config.yaml", "ledger.sqlite", "report.html", "student.safetensors"}
ONE, TWO = {"0/sum": 2}, {"0/sum": 2, "1/sum": 2}
SCORED = {"0/sum": 2, "1/score": 1}
# By command what it charges in all, and every which change of the disk it is killed before
SWEPT = {
    "votes": (None, 5),
    "auto": (ONE, 4),
    "update": (TWO, 3),
    "compare": (ONE, 7),
    "fit": (SCORED, 4),
    "replace": (SCORED | {"2/sum": 2, "3/score": 1}, 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", SWEPT)
def test_killed_before_any_change_of_the_disk(tmp_path: Path, command: str) -> None:
    """The same command finishes it, and pays nothing twice."""
    charged, stride = SWEPT[command]
    deaths = kills("run_kill_sweep", tmp_path / "runs", stride, command)
    assert deaths[-1]["status"] == 0  # the sweep went on until a run was not killed any more
    assert len(deaths) > 20
    for kill in deaths:
        assert kill["resumed"] == 0, kill
        assert kill["kept"], kill  # what was answered before the kill is the answer after it
        assert all(kill["exported"]), kill
        assert not any(kill["problems"]), kill
        assert not kill["left"], kill
        assert command == "compare" or set(kill["made"]) >= FINISHED, kill
        if charged is not None:
            assert kill["charged"] == charged, kill
        if kill["rows"]:
            rows = 70 if command == "replace" else 60
            assert kill["rows"] == {"private_x": rows, "private_y": rows}
    if charged is None:  # at most the batch in flight is paid again
        total = [sum(kill["charged"].values()) - kill["answered"] for kill in deaths]
        assert max(total) <= 5
        assert total[-1] == 0


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


def test_a_run_keeps_its_axes(folder: Path, monkeypatch) -> None:
    """Resumed, it asks nothing anew, though the axes would come out otherwise now."""
    assert run("--whiten", "3", *QUICK) == 0
    out = RunFolder(folder / "out")
    spent, kept = out.ledger_state().spent, out.extractor(FEATURES)
    assert np.frombuffer(kept.axes, dtype="<i2").shape == (tiny.DIMENSIONS * 3,)
    for name in ("summary.json", "round_1/metrics.json", "round_1/answers.npz"):
        (out.path / name).unlink()
    monkeypatch.setattr(asking_features, "whitened", lambda *_: pytest.fail("built again"))
    assert run("--whiten", "3", *QUICK) == 0
    assert out.ledger_state().spent == spent
