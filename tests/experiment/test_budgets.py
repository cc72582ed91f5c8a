"""One's own data have one budget; nothing private read does not look like a result."""

from pathlib import Path

import pytest

from labelwall import pipeline
from labelwall.teacher.custodian import LEDGER
from tests.experiment import tiny
from tests.experiment.checks import summary

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
        assert "Another --custodian_dir opens another budget, and both add up: to 17" in line
    assert ledgers() == ["data.npz.custodian"]
    assert pipeline.main([*RUN, "--epsilon", "8"]) == 0  # the same run again

    other = [*RUN, "--epsilon", "9", "--custodian_dir", "other", "--run_dir", "runs/b"]
    for _ in range(2):  # the second time it continues
        assert pipeline.main(other) == 0
        assert "same records: epsilon 8 + 9 = 17" in capsys.readouterr().err
        assert ledgers() == ["data.npz.custodian", "other"]


def test_a_budget_of_which_nothing_was_released_may_be_fixed_again(monkeypatch, capsys) -> None:
    with monkeypatch.context() as killed:
        killed.setattr("labelwall.experiment.run.rounds.ask", lambda *_: exec("raise OSError"))
        assert pipeline.main([*RUN, "--epsilon", "8"]) == 2
    capsys.readouterr()
    assert pipeline.main([*RUN, "--epsilon", "9"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "Nothing was released yet: remove that directory" in line


def test_other_settings_of_the_same_rows_are_no_new_budget(capsys) -> None:
    linear = ["--mechanism.kind", "private_linear", "--mechanism.steps", "2"]
    assert pipeline.main([*RUN, *linear, "--epsilon", "8"]) == 0
    capsys.readouterr()
    assert pipeline.main([*RUN, *linear[:-1], "3", "--epsilon", "8"]) == 2
    assert "Continue with those settings" in capsys.readouterr().err
    assert ledgers() == ["data.npz.custodian"]


def test_changed_private_files_are_told(capsys) -> None:
    command = [*RUN, "--epsilon", "8"]
    assert pipeline.main(command) == 0
    assert pipeline.main(command) == 0
    assert "private files changed" not in capsys.readouterr().err
    tiny.change(private_x=tiny.rows(200, 1)[0] + 1)
    assert pipeline.main(command) == 0
    assert "the private files changed; this is the result of" in capsys.readouterr().err


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
    assert "about 30 records (expected_records) do not show above the noise" in text
    assert "round 1: the released counts do not tell the records from none" in text
    assert "labels unknown" in text
    assert summary("runs/b")["rounds"][0]["estimate"]["by"] == "nothing"


@pytest.mark.parametrize("command", [["plan"], RUN[:1]])
def test_a_large_epsilon_is_explained(command: list[str], capsys) -> None:
    for epsilon, told in (("12", True), ("9", False)):
        other = ["--custodian_dir", "other", "--run_dir", "other"]
        more = other if command == ["run"] and not told else []
        assert pipeline.main([*command, *RUN[1:], "--epsilon", epsilon, *more]) == 0
        shown = "".join(capsys.readouterr())
        assert ("times as likely with a record as without it" in shown) == told
