"""One's own data have one budget; nothing private read does not look like a result."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import labelwall as lw
from labelwall import pipeline
from labelwall.teacher.custodian import LEDGER
from tests.experiment import tiny
from tests.experiment.checks import named, summary

RUN = ["run", "--data", "data.npz", "--student.steps", "5", "--student.doubtful_folds", "0"]
RUN += ["--threads", "1", "--workers", "1"]
pytestmark = pytest.mark.usefixtures("folder", "one_budget")


def ledgers() -> list[str]:
    return sorted(path.parent.name for path in Path.cwd().rglob(LEDGER) if "runs" not in path.parts)


def test_another_epsilon_is_refused_until_another_directory_is_named(capsys) -> None:
    assert pipeline.main([*RUN, "--epsilon", "8"]) == 0
    assert ledgers() == ["data.npz.custodian"]
    capsys.readouterr()
    for more in ([], ["--run_dir", "elsewhere"], ["--custodian_dir", "null"]):
        assert pipeline.main([*RUN, "--epsilon", "9", *more]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "begun with epsilon 8 at delta 1e-05" in line
        assert "is spent" in line
        assert "Continue with --epsilon 8 --delta 1e-05" in line
        assert "Another --custodian_dir opens another budget, and all add up: to 17" in line
    assert ledgers() == ["data.npz.custodian"]
    assert pipeline.main([*RUN, "--epsilon", "8"]) == 0  # the same run again

    other = [*RUN, "--epsilon", "9", "--custodian_dir", "other", "--run_dir", "runs/b"]
    for _ in range(2):  # the second time it continues
        assert pipeline.main(other) == 0
        assert "2 budgets for the same records add up: epsilon 8 + 9 = 17 at delta 2e-05" in (
            capsys.readouterr().err
        )
        assert ledgers() == ["data.npz.custodian", "other"]


PREDICT = ["predict", *RUN[1:], "--queries", "q.npz", "--out", "a.npz"]
LINEAR = ["--mechanism.kind", "private_linear", "--mechanism.steps", "2"]


WAYS = [RUN, [*RUN, "--quiet"], [*RUN, "--isolate"], [*RUN, "--isolate", "--quiet"], PREDICT]


def test_every_way_to_another_budget_says_the_sum(capfd) -> None:
    np.savez("q.npz", x=tiny.rows(5, 9)[0])
    assert pipeline.main([*RUN, *LINEAR, "--epsilon", "1", "--custodian_dir", "first"]) == 0
    assert pipeline.main(["data", "--data", "data.npz"]) == 0  # spends nothing
    assert "add up" not in capfd.readouterr().err
    terms = "1"
    for count, command in enumerate(WAYS, 2):
        more = ["--run_dir", f"runs/{count}"] if command[0] == "run" else []
        more += ["--epsilon", "2", "--custodian_dir", f"{count}.custody"]
        assert pipeline.main([*command, *LINEAR, *more]) == 0
        terms += " + 2"
        sums = f"epsilon {terms} = {2 * count - 1} at delta {count}e-05"
        told = f"{count} budgets for the same records add up: {sums}"
        assert told in capfd.readouterr().err
    last = [*RUN, *LINEAR, "--epsilon", "4", "--run_dir", "runs/c"]
    for _ in range(2):
        assert pipeline.main(last) == 0  # beside the rows
        assert f"epsilon {terms} + 4 = 15" in capfd.readouterr().err
        shutil.rmtree("first", ignore_errors=True)  # what was released stays released


def test_a_comparison_and_a_service_say_the_sum(capsys, monkeypatch) -> None:
    assert pipeline.main([*RUN, *LINEAR, "--epsilon", "1"]) == 0
    methods = ["--methods", "linear_noisy_sgd", "gnmax", "--epsilon", "2"]
    assert pipeline.main(["compare", *RUN[1:], "--out", "cmp", *methods]) == 0
    text = capsys.readouterr().err
    for told in ("epsilon 1 + 2 = 3 at", "epsilon 1 + 2 + 2 = 5 at"):
        assert f"budgets for the same records add up: {told}" in text
    monkeypatch.setattr("labelwall.teacher.custody.serving.listen", lambda _: exec("raise OSError"))
    serve = ["serve", "--data", "data.npz", *LINEAR, "--epsilon", "4", "--custodian_dir", "served"]
    assert pipeline.main(serve) == 2
    assert "4 budgets for the same records add up: epsilon 1 + 2 + 2 + 4 = 9" in (
        capsys.readouterr().err
    )


def renamed(how: str) -> tuple[str, str]:
    """(the rows, the run folder) once the same rows are reached in another way."""
    if how == "link":
        Path("link.npz").symlink_to("data.npz")
    elif how == "moved":
        Path("far/away").mkdir(parents=True)
        for name in ("data.npz", "data.npz.custodian"):
            Path(name).rename(Path("far/away", name))
    places = {"link": "link.npz", "dots": f"../{Path.cwd().name}/data.npz"}
    return places.get(how, "far/away/data.npz"), "runs/b"


@pytest.mark.parametrize("how", ["link", "dots", "moved"])
def test_the_same_rows_by_another_path_have_the_same_budget(how: str, capsys) -> None:
    assert pipeline.main([*RUN, *LINEAR, "--epsilon", "1"]) == 0
    rows, run_dir = renamed(how)
    again = [*RUN[:2], rows, *RUN[3:], *LINEAR, "--epsilon", "1", "--run_dir", run_dir]
    assert pipeline.main(again) == 0
    assert "add up" not in capsys.readouterr().err
    assert ledgers() == ["data.npz.custodian"]
    with np.load(rows) as stored:
        np.savez(Path(rows).with_name("other.npz"), **stored)
    command = [*RUN[:2], str(Path(rows).with_name("other.npz")), *RUN[3:], *LINEAR]
    command += ["--epsilon", "1", "--run_dir", "runs/c", "--custodian_dir", str(ledger_of(rows))]
    assert pipeline.main(command) == 2
    assert "another data set" in capsys.readouterr().err


def ledger_of(rows: str) -> Path:
    return Path(rows).resolve().with_name("data.npz.custodian")


def test_a_custodian_s_directory_may_move_alone() -> None:
    assert pipeline.main([*RUN, *LINEAR, "--epsilon", "1"]) == 0
    Path("data.npz.custodian").rename("elsewhere")
    again = [*RUN, *LINEAR, "--epsilon", "1", "--run_dir", "runs/b", "--custodian_dir", "elsewhere"]
    assert pipeline.main(again) == 0
    assert ledgers() == ["elsewhere"]


@pytest.mark.parametrize("texts", [False, True])
def test_rows_that_a_program_stored_have_the_budget_of_their_directory(texts: bool, capsys) -> None:
    (x, y), (u, _), test = tiny.rows(200, 1), tiny.rows(90, 2), tiny.rows(40, 3)
    small = {"mechanism": {"kind": "private_linear", "steps": 2}, "threads": 1, "workers": 1}
    small["student"] = {"steps": 5, "doubtful_folds": 0}
    data = lw.Data(private=(x, y), public=u, test=test)
    if texts:
        words = [
            [f"word{a} of a text {n}" for n, a in enumerate(labels)] for labels in (y, test[1])
        ]
        rows, codes = words[0], [f"c{label}" for label in y]
        data = lw.Data(
            private=(rows, codes),
            public=[f"{text} once more" for text in rows],
            test=(words[1], [f"c{label}" for label in test[1]]),
        )
    lw.fit(data, 1.0, custody="custody", run_dir="runs/a", **small)
    given = ["--data", "custody/rows"]
    if texts:
        splits = {split: f"custody/rows/{split}.csv" for split in ("private", "public", "test")}
        given = [*named(splits), "--text", "text"]
    command = ["run", *given, *RUN[3:], "--run_dir", "runs/b"]
    assert pipeline.main([*command, "--epsilon", "2"]) == 2
    assert "was begun with epsilon 1" in capsys.readouterr().err
    assert pipeline.main([*command, "--epsilon", "2", "--custodian_dir", "other"]) == 0
    assert "add up: epsilon 1 + 2 = 3" in capsys.readouterr().err
    lw.fit(data, 1.0, custody="custody", run_dir="runs/a", quiet=True, **small)
    assert "add up: epsilon 1 + 2 = 3" in capsys.readouterr().err
    assert ledgers() == ["custody", "other"]


def test_a_budget_of_which_nothing_was_released_may_be_fixed_again(monkeypatch, capsys) -> None:
    with monkeypatch.context() as killed:
        killed.setattr("labelwall.experiment.run.rounds.ask", lambda *_: exec("raise OSError"))
        assert pipeline.main([*RUN, "--epsilon", "8"]) == 2
    capsys.readouterr()
    assert pipeline.main([*RUN, "--epsilon", "9"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "Nothing was released yet: remove that directory" in line


def test_other_settings_of_the_same_rows_are_no_new_budget(capsys) -> None:
    assert pipeline.main([*RUN, *LINEAR, "--epsilon", "8"]) == 0
    capsys.readouterr()
    assert pipeline.main([*RUN, *LINEAR[:-1], "3", "--epsilon", "8"]) == 2
    assert "Continue with those settings" in capsys.readouterr().err
    assert ledgers() == ["data.npz.custodian"]


def test_no_private_rows_do_not_look_like_a_result(capsys) -> None:
    """A file whose private rows are all gone: the counts are noise, and no estimate is given. The
    run stops, unless the guessed records would not show either.
    """
    x, y = tiny.rows(0, 1)
    tiny.change(private_x=x, private_y=y, private_id=y, public_y=None)
    assert pipeline.main([*RUN, "--epsilon", "1"]) == 2
    assert "so the run stops here" in capsys.readouterr().err
    hidden = ["--expected_records", "30", "--custodian_dir", "b", "--run_dir", "runs/b"]
    assert pipeline.main([*RUN, "--epsilon", "1", *hidden]) == 0
    text = capsys.readouterr().err
    assert "so 30 records (expected_records) cannot be seen" in text
    assert "round 1: the noisy counts could come from no records at all" in text
    assert "labels unknown" in text
    assert summary("runs/b")["rounds"][0]["estimate"]["by"] == "nothing"


@pytest.mark.parametrize("more", [[], LINEAR])
def test_a_large_delta_is_explained(more: list[str], capsys) -> None:
    for delta, told in (("0.9", True), ("0.01", True), ("1e-3", False), ("1e-5", False)):
        where = ["--custodian_dir", f"c{delta}", "--run_dir", f"r{delta}"]
        for command in (["plan"], [*RUN[:1], *where]):
            assert (
                pipeline.main([*command, *RUN[1:], *more, "--epsilon", "8", "--delta", delta]) == 0
            )
            shown = "".join(capsys.readouterr())
            line = f"delta {delta} is larger than 1/1,000 (one over the guessed number of records)"
            assert (line in shown) == told
    assert pipeline.main(["plan", *RUN[1:], "--delta", "1e-3", "--expected_records", "2000"]) == 0
    assert "larger than 1/2,000 (one over" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["plan"], RUN[:1]])
def test_a_large_epsilon_is_explained(command: list[str], capsys) -> None:
    for epsilon, told in (("12", True), ("9", False)):
        other = ["--custodian_dir", "other", "--run_dir", "other"]
        more = other if command == ["run"] and not told else []
        assert pipeline.main([*command, *RUN[1:], "--epsilon", epsilon, *more]) == 0
        shown = "".join(capsys.readouterr())
        assert ("times as likely with a record as without it" in shown) == told


def test_predictions_and_changes_of_own_rows_use_the_directory_beside_them() -> None:
    tiny.configure(mechanism={"kind": "ind_knn", "threshold": 0.3, "sigma_label": 0.3}, caps=None)
    np.savez("q.npz", x=tiny.rows(10, 9)[0])
    where = ["--config", "config.yaml"]
    command = ["predict", *where, "--queries", "q.npz", "--out", "a.npz", "--quiet"]
    assert pipeline.main(command) == 0
    assert ledgers() == ["data.npz.custodian"]
    assert pipeline.main(["records", "remove", *where, "--ids", "1003", "--dry_run"]) == 0


def test_queries_of_a_table_are_a_table_and_arrays_are_refused_before_the_charge(capsys) -> None:
    files = named(tiny.write_tables(1, private=300, public=60, test=60))
    command = ["predict", *files, "--label", "kind", "--epsilon", "1000", *LINEAR[:2]]
    command += ["--mechanism.steps", "6", "--out", "a.npz"]
    np.savez("q.npz", x=np.ones((3, tiny.DIMENSIONS), dtype=np.float32))
    assert pipeline.main([*command, "--queries", "q.npz"]) == 2
    assert "`queries` must be a file (.csv" in capsys.readouterr().err
    assert not ledgers()
    Path("odd.csv").write_text(Path("test.csv").read_text() + "1,2\n")
    assert pipeline.main([*command, "--queries", "odd.csv"]) == 2
    assert "a table whose records have a cell for each column. Found '1 others'" in (
        capsys.readouterr().err
    )
    assert not ledgers()
    assert pipeline.main([*command, "--queries", "test.csv"]) == 0
    assert "60 of 60 answered, 0 sums known before" in capsys.readouterr().out
    with np.load("a.npz") as stored:
        truth = [line.split(",")[-1] for line in Path("test.csv").read_text().splitlines()[1:]]
        right = np.array(sorted(set(truth)))[stored["labels"]] == np.array(truth)
    assert right.mean() > 0.8
