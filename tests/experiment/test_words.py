"""What the command line answers to what a new user types."""

import json
from pathlib import Path

import pytest

from labelwall import pipeline
from labelwall.experiment.config.options import parse
from labelwall.experiment.plan.planner import Choice, View
from labelwall.experiment.plan.show import choices_table
from labelwall.experiment.run.lines import result_line, seldom_found
from labelwall.experiment.run.summary import Baselines
from labelwall.teacher.mechanisms.sums import PrivateLinear
from labelwall.wall.computing import free_threads
from labelwall.wall.console import Console
from tests.experiment import tiny
from tests.experiment.checks import check_one_error, named
from tests.experiment.results import made_round, made_summary

ROUNDS = ["--rounds", "2"]
pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def table() -> list[str]:
    return ["plan", *named(tiny.write_tables(private=200, public=200, test=200))]


@pytest.mark.parametrize("word", ["-V", "--version", "version"])
def test_the_version(word: str, capsys) -> None:
    assert pipeline.main([word]) == 0
    assert capsys.readouterr().out.startswith("labelwall ")


def test_the_nearest_name_is_offered(table: list[str], capsys) -> None:
    check_one_error(["clasify"], "Did you mean 'classify'?", capsys)
    check_one_error([*table, "--label", "Kind"], "Found 'Kind'. Did you mean 'kind'?", capsys)
    one = ["plan", "--data", "public.csv", "--split", "kindd"]
    check_one_error(one, "Did you mean 'kind'?", capsys)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["--steps", "100"], "student.steps"),
        (["--eps", "1"], "budget.epsilon"),
        (["--thread", "1"], "threads"),
        (["--student.step", "9"], "student.steps"),
        (["--students", "{}"], "student"),
    ],
)
def test_a_setting_is_offered_with_its_group(typed: list[str], meant: str, capsys) -> None:
    check_one_error(["plan", "--config", "config.yaml", *typed], f"Did you mean `{meant}`?", capsys)


def test_rounds_may_be_a_number() -> None:
    own = parse(["--data", "data.npz", "--rounds", "3"])[0]
    assert len(own.rounds) == 3
    assert own.rounds[0] == parse(["--data", "data.npz"])[0].rounds[0]
    (first, *_), file = (parse(["--config", "config.yaml", *m])[0].rounds for m in ([], ROUNDS))
    assert file == [first] * 2


def test_a_directory_is_one_place_wherever_the_command_is_given() -> None:
    config, _ = parse(["--config", "config.yaml", "--custodian_dir", "custody"])
    assert config.custodian_dir == str(Path("custody").absolute())


def test_the_analyst_needs_no_private_rows(table: list[str], capsys) -> None:
    analyst = [*table[3:], "--label", "kind"]
    config, given = parse([*analyst, "--teacher", "http://127.0.0.1:9"])
    assert config.open
    assert config.data.private is None
    assert given.name == Path.cwd().name
    check_one_error(["run", *analyst], "Give `private`: there is no --data FILE", capsys)


def test_missing_private_rows_are_noticed_before_the_rehearsal(table: list[str], capsys) -> None:
    Path("private.csv").unlink()
    run = ["run", *table[1:], "--label", "kind"]
    assert pipeline.main(run) == 2
    said = capsys.readouterr().err
    assert "`data.private` must be an existing file or folder" in said
    assert "rehears" not in said


def test_a_result_below_the_most_frequent_class_is_said_loudly() -> None:
    beside = Baselines(frequent=("good", 0.745), public=("boosted trees", 0.7), no_privacy=0.81)
    line = result_line(made_summary(test_accuracy=0.52, baselines=beside), Path("run"))
    assert "52.00%, BELOW THE MOST FREQUENT CLASS (always 'good' 74.5%, public labels" in line
    better = result_line(made_summary(test_accuracy=0.8, baselines=beside), Path("run"))
    alone = "public labels alone 70.0% by boosted trees"
    assert (
        f"80.00% (always 'good' 74.5%, {alone}, regression on the test rows about 81%) at" in better
    )


def test_a_result_below_public_labels_alone_is_said_loudly_unless_it_may_be_chance() -> None:
    beside = Baselines(frequent=("good", 0.5), public=("boosted trees", 0.9), no_privacy=0.92)
    made = {"baselines": beside, "test_rows": 400}
    line = result_line(made_summary(test_accuracy=0.8, **made), Path("run"))
    assert "80.00%, BELOW WHAT PUBLIC LABELS ALONE GIVE (always 'good' 50.0%" in line
    assert not made_summary(test_accuracy=0.88, **made).needless
    assert not made_summary(test_accuracy=0.8, balanced=True, **made).needless


def test_the_option_that_finds_a_rare_class_is_named_where_one_is_lost() -> None:
    known = {"test_accuracy": 0.95, "balanced_accuracy": 0.5, "worst_class": 0.0}
    (line,) = seldom_found(made_summary(**known))
    assert "right on 0.0% of its test rows. A run with --balanced" in line
    for other in ({"balanced": True}, {"worst_class": 0.6}, {"balanced_accuracy": 0.94}):
        assert not seldom_found(made_summary(**known | other))
    assert not seldom_found(made_summary())


def test_a_balanced_result_is_compared_with_one_class_by_balanced_accuracy() -> None:
    beside = Baselines(frequent=("good", 0.95), public=None, no_privacy=None)
    rounds = (made_round(confusion=[[60, 35], [1, 4]]),)
    known = {"test_accuracy": 0.64, "baselines": beside, "rounds": rounds, "balanced": True}
    assert not made_summary(**known, balanced_accuracy=0.7).useless
    assert made_summary(**known, balanced_accuracy=0.45).useless


def test_the_rehearsal_s_table_is_ten_lines_the_chosen_one_first() -> None:
    view = View(features="raw", whiten=0, dimensions=8, axes=0, rows=90, classes=3, records=300)
    linear = PrivateLinear(steps=9)
    known = {"epsilon": 1.0, "view": view, "mechanism": linear, "asked": 9, "cap": 9}
    choices = [Choice(**known, answered=90.0, accuracy=0.8 + n / 100) for n in range(14)]
    title, first, *others = choices_table(choices).splitlines()
    assert title.startswith("14 rehearsed")
    assert first.startswith("* 80.0% right")
    assert len(others) == 9
    assert not [line for line in others if line.startswith("*")]


def test_progress_is_a_line_at_most_each_half_minute_and_json_on_request(
    capsys, monkeypatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("labelwall.wall.console.time.monotonic", lambda: now[0])
    console = Console(json=True)
    for task in range(10):
        for done in range(4):
            now[0] += 2.0
            console.progress(f"task {task}", done, 4)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert 2 <= len(lines) <= 4  # in 80 seconds
    assert {"task", "done", "total", "seconds_left"} == lines[0].keys()


def test_threads_are_as_many_as_cpus_are_idle(monkeypatch) -> None:
    for idle, most, expected in ((0, 4, 1), (50, 4, 2), (100, 4, 4), (100, 2, 2)):
        seen = iter([(0, 0), (idle, 100)])
        monkeypatch.setattr("labelwall.wall.computing._idle", lambda seen=seen: next(seen))
        monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(4))
        assert free_threads(most) == expected


def test_help_says_the_defaults_of_own_data(capsys) -> None:
    with pytest.raises(SystemExit):
        pipeline.main(["run", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "(default: private_knn; of your own data: auto, if at least 100 rows have labels)" in said
    )


def test_columns_that_are_not_listed_are_counted(capsys) -> None:
    Path("wide.csv").write_text(",".join(f"column{n}" for n in range(30)) + "\n")
    check_one_error(["plan", "--data", "wide.csv"], "column8 and 20 more. Found 'split'", capsys)


def test_predict_points_to_classify(capsys) -> None:
    line = ["predict", "--student", "run", "--queries", "data.npz", "--out", "out.npz"]
    check_one_error(line, "`labelwall classify --student DIR", capsys)


def test_keys_make_no_directory(capsys) -> None:
    line = ["keys", "add", "--custodian_dir", "absent", "--name", "ann"]
    check_one_error(line, "`labelwall serve` makes. Found 'absent'", capsys)
    assert not Path("absent").exists()


def test_a_run_folder_is_audited(capsys) -> None:
    run = ["run", "--config", "config.yaml", "--run_dir", "run", "--quiet", "--threads", "1"]
    assert pipeline.main(run) == 0
    assert pipeline.main(["audit", "run"]) == 0
    by_folder = capsys.readouterr().out.splitlines()[1:]
    assert pipeline.main(["audit", "run/ledger.sqlite"]) == 0
    assert capsys.readouterr().out.splitlines() == by_folder


def test_the_quickstart_is_in_the_package(monkeypatch) -> None:
    ran = list[list[str]]()
    monkeypatch.setattr(
        "labelwall.experiment.commands.configured.run", lambda args: ran.append(args) or 0
    )
    assert pipeline.main(["demo", "--seed", "1"]) == 0
    ((_, config, *rest),) = ran
    assert Path(config).is_file()
    assert rest == ["--run_dir", "runs/demo", "--seed", "1"]
