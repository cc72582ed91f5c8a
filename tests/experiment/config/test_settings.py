"""Settings of a mechanism by its kind: from files and overrides, told apart, with one clear line
for a mistake; what the unit of privacy decides."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from labelwall.experiment.config.config import Config
from labelwall.experiment.config.options import parse
from labelwall.experiment.config.settings import BadSetting, load_config, parsed, to_yaml
from labelwall.teacher.custody.groups import PrivacyConfig, RoundConfig
from labelwall.teacher.custody.recorded import plan_beside
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.sums import PrivateLinear, PrivateLinearValue, ReverseKnn
from labelwall.teacher.mechanisms.votes import Gnmax, PrivateKnn
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.errors import InvalidInput

LINEAR, CELLS = PrivateLinear(noise_multiplier=9.0), ReverseKnn(sigma=9.0)
RUN = "mechanism: {kind: gnmax, teachers: 9, sigma_vote: 3.0}\nrounds: [{queries: 3}]\n"
ROUNDS = (
    "rounds: [{queries: 3}, {queries: 4, mechanism: {kind: gnmax, teachers: 7}}, "
    "{queries: 5, mechanism: {k: 200}}]\n"
)


START = "data: {source: mnist5k}\nbudget: {epsilon: 1000.0}\nseed: 7\n"


def load(tmp_path: Path, text: str, *overrides: str) -> Config:
    path = tmp_path / "c.yaml"
    path.write_text(START + text)
    return parse(["--config", str(path), *overrides], "test")[0]


@pytest.mark.parametrize(
    ("options", "mechanism"),
    [
        ([], Gnmax(teachers=9, sigma_vote=3.0)),
        (["--mechanism.teachers=5"], Gnmax(teachers=5, sigma_vote=3.0)),
        (["--mechanism.teachers", "5"], Gnmax(teachers=5, sigma_vote=3.0)),
        # Another kind replaces the file's mechanism, in any order of the options
        (["--mechanism.kind", "private_knn", "--mechanism.k", "250"], PrivateKnn(k=250)),
        (["--mechanism.k=250", "--mechanism.kind=private_knn"], PrivateKnn(k=250)),
    ],
)
def test_overrides_reach_the_files_mechanism(tmp_path, options, mechanism) -> None:
    config = load(tmp_path, RUN, *options)
    assert (config.mechanism, config.seed) == (mechanism, 7)
    (tmp_path / "again.yaml").write_text(to_yaml(config))
    assert load_config(tmp_path / "again.yaml") == config


def test_a_round_has_its_own_kind(tmp_path: Path) -> None:
    config = load(tmp_path, ROUNDS)
    assert [r.mechanism for r in config.rounds] == [None, Gnmax(teachers=7), PrivateKnn(k=200)]
    kinds = [entry.mechanism.kind for entry in config.schedule.priced()]
    assert kinds == ["private_knn", "gnmax", "private_knn"]


AUTO = "mechanism: {kind: auto}\n"
UNKNOWN = "mechanism.kind` must be one of private_knn, .*gnmax.*'nonsense'"


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (RUN, ["--mechanism.kind", "nonsense"], f"`{UNKNOWN}"),
        (RUN.replace("gnmax", "nonsense"), [], f"`{UNKNOWN}"),
        (ROUNDS.replace("gnmax", "nonsense"), [], f"`rounds.{UNKNOWN}"),
        (
            RUN,
            ["--mechanism.kind", "private_knn", "--mechanism.teachers", "1"],
            "unknown setting `mechanism.teachers`. `mechanism.teachers` is a setting with "
            "--mechanism.kind lnmax, gnmax, confident_gnmax, gnmax_attributes.",
        ),
        (
            ROUNDS.replace("teachers", "teacherz"),
            [],
            "unknown setting `rounds.mechanism.teacherz`. Did you mean `rounds.mechanism.teachers`",
        ),
        (ROUNDS.replace("7", "many"), [], "`rounds.mechanism.teachers` must .*integer.*'many'"),
        (RUN, ["--student", "3"], "`student` must be settings by name. Found '3'"),
        (RUN, ["--rounds", "[{"], r"`rounds` must be a list, such as '\[a, b\]'"),
        (f"{RUN}5: 3\n", [], "unknown setting `5`"),
        (f"{RUN}data.person: a\n", [], "data: {person: ...}`, in Python data={'person': ...}"),
        (RUN, ["--rounds", "0"], "`rounds` must be a number from 1 to 99, or a list .*'0'"),
        (RUN, ["--rounds", "100"], "`rounds` must be a number from 1 to 99"),
        ("", ["--private", "absent", "--sed", "3"], "unknown setting `sed`. .* `seed`"),
        ("", ["--data", "a.npz", "--private", "a", "--student.stepz", "3"], "`student.stepz`"),
        (RUN, ["--box", "[[low, 1]]"], "`box` must be a valid number. Found 'low'"),
        (RUN, ["--seed"], "`--seed` must have a value"),
        (RUN, ["4"], "unexpected argument '4'"),
        ("", [], "Give `rounds`: it has no default."),
        ("", ["--config", "nowhere.yaml"], "existing YAML file. Found 'nowhere.yaml'"),
        ("", ["--config", "broken.yaml"], "must be a YAML file"),
        ("budget: {epsilon: 8.0}\n", [], "c.yaml: `budget` is given twice, .* line 4"),
        (f"{RUN}student:\n  steps: 1\n  steps: 2\n", [], "`steps` is given twice, .* line 8"),
        (RUN, ["--student", "{steps: 1, steps: 2}"], "`steps` is given twice"),
        (f"{RUN}student: !!int {'1' * 5000}\n", [], "must be a YAML file. Found could not det"),
        (f"{RUN}threads: {'1' * 5000}\n", [], "`threads` must be a smaller number"),
        (f"{RUN}batch_size: 1.5\n", [], "`batch_size` must be a valid integer. Found '1.5'"),
        (f"{RUN}student: *steps\n", [], "undefined alias"),
    ],
)
def test_a_mistake_is_one_clear_line(tmp_path, text, options, expected) -> None:
    Path("broken.yaml").write_text("a: [")
    with pytest.raises((BadSetting, InvalidInput), match=expected) as caught:
        load(tmp_path, text, *options)
    assert len(str(caught.value).splitlines()) == 1


def test_names_are_what_is_written(tmp_path: Path) -> None:
    names = ["01", "no", "2024-01-01", "1e3", "0x1f", "1_000", "12:30:45", ".nan", "="]
    written = f"data: {{source: table, private: a, public: b, classes: [{', '.join(names)}], "
    path = tmp_path / "names.yaml"
    path.write_text(f"{written}ignore: [1, on], label: 007, split: 1.0}}\nrounds: [{{}}]\n{AUTO}")
    config = parse(["--config", str(path)])[0]
    assert config.data.classes == names
    options = ["--config", str(path), f"--data.classes=[{', '.join(names[1:])}]"]
    assert parse(options)[0].data.classes == names[1:]
    data = config.data
    assert (data.ignore, data.label, data.split) == (["1", "on"], "007", "1.0")
    (tmp_path / "again.yaml").write_text(to_yaml(config))
    assert load_config(tmp_path / "again.yaml") == config
    with pytest.raises(InvalidInput, match=r"data.classes` must be texts.*Quote a word .* 'null'"):
        parse(["--config", str(path), "--data.classes=[null, other]"])


LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
HOSTILE = {
    "an alias of aliases": LAUGHS,
    "an alias in itself": "rounds: &r [*r]\n",
    "20,000 brackets": f"rounds: {'[' * 20_000}{']' * 20_000}\n",
    "20,000 braces": f"rounds: {'{a: ' * 20_000}1{'}' * 20_000}\n",
    "100,000 rounds": f"rounds: [{', '.join(['{}'] * 100_000)}]\n",
    "20,000 rounds": f"rounds: [{', '.join(['{}'] * 20_000)}]\n",
    "20,000 groups": f"{'a.' * 20_000}a: 1\n",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("option", [False, True])
def test_hostile_settings_are_refused_soon(tmp_path: Path, name: str, option: bool) -> None:
    began, text = time.process_time(), HOSTILE[name]
    options = [f"--{text.strip().replace(': ', '=', 1)}"] if option else []
    with pytest.raises((BadSetting, InvalidInput)) as caught:
        load(tmp_path, RUN if option else text, *options)
    assert len(str(caught.value).splitlines()) == 1
    # Parsing alone takes two seconds on a slow machine; what aliases stand for would take for ever
    assert time.process_time() - began < 20


def test_aliases_and_merged_groups_stay() -> None:
    text = "a: &a {k: 1, kind: x}\nb: {<<: *a, k: 2}\nc: [*a, ~, null, 'null', '']\nd:\n"
    a = {"k": "1", "kind": "x"}
    b, c = {"k": "2", "kind": "x"}, [a, None, None, "null", ""]
    assert parsed(text) == {"a": a, "b": b, "c": c, "d": None}


def test_help_shows_the_chosen_kind(capsys) -> None:
    with pytest.raises(SystemExit):
        parse(["--mechanism.kind", "gnmax", "--help"], "test")
    shown = capsys.readouterr().out
    assert "--mechanism.teachers" in shown
    assert "private_knn, " in " ".join(shown.split())


def configured(mechanism: Mechanism, unit: str = "person") -> Config:
    bounds = [0.0, 1.0] if mechanism.label_space == "value" else []
    data = DataConfig(source="arrays", path="data.npz", labels=mechanism.label_space, bounds=bounds)
    rounds = [RoundConfig(), RoundConfig(mechanism=replace(mechanism))]
    return Config(data=data, mechanism=mechanism, rounds=rounds, privacy=PrivacyConfig(unit))


@pytest.mark.parametrize(
    ("mechanism", "name", "number"),
    [
        (CELLS, "parts", 4096),
        (LINEAR, "gain", 2),
        (PrivateLinearValue(noise_multiplier=9.0), "gain", 1),
    ],
)
def test_a_plan_for_persons_names_what_rows_do_not_have(mechanism, name, number) -> None:
    """A number that is left out is a ledger's; one that is given is another plan."""
    new = configured(mechanism)
    assert [slot.mechanism[name] for slot in new.plan().slots] == [number, number]
    assert all(slot.mechanism[name] is None for slot in configured(mechanism, "row").plan().slots)
    plan = configured(replace(mechanism, **{name: 1})).plan()
    assert plan_beside(new.schedule, plan) == plan
    assert plan_beside(new.schedule, new.plan()) == new.plan()
    given = configured(replace(mechanism, **{name: 3}))
    assert plan_beside(given.schedule, plan) == given.plan() != plan
    assert plan_beside(new.schedule, given.plan()) == given.plan()


def test_a_side_has_its_own_settings_and_no_others(tmp_path: Path) -> None:
    """The process of an isolated teacher is given the private ones, and has all it needs."""
    config = load(tmp_path, RUN, "--student.steps=40", "--ledger=postgresql://a@b:1/c?schema=d")
    private, public = config.private_side(), config.public_side()
    shared = {"data", "threads", "workers", "batch_size", "device"}
    assert vars(private).keys() & vars(public).keys() == shared
    assert vars(private).keys() | vars(public).keys() == vars(config).keys()
    assert {"student", "seed"} <= vars(public).keys()
    (tmp_path / "side.yaml").write_text(to_yaml(private))
    assert parse(["--config", str(tmp_path / "side.yaml")])[0].private_side() == private


def test_only_entries_and_what_resolves_or_prints_it_take_all_of_a_configuration() -> None:
    """Rooms below them have the private or the public side's settings, and rounds."""
    experiment = Path(__file__).parents[3] / "experiment"
    files = (path for path in experiment.rglob("*.py") if path.parent.name != "config")
    takers = [path for path in files if "config.config import" in path.read_text()]
    assert sorted(path.relative_to(experiment).as_posix() for path in takers) == [
        "api.py",
        "commands/configured.py",
        "compare/cells.py",
        "compare/methods.py",
        "compare/run_cells.py",
        "plan/search.py",
        "report/report.py",
        "run/door.py",
        "run/served.py",
        "whole_run.py",
    ]
