"""Settings of a mechanism by its kind: from files and overrides, told apart, with one clear line
for a mistake; what the unit of privacy decides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from labelwall.experiment.config.config import Config
from labelwall.experiment.config.groups import PrivacyConfig, RoundConfig
from labelwall.experiment.config.settings import BadSetting, parse, to_yaml
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.pate import Gnmax
from labelwall.teacher.mechanisms.sums import PrivateLinear, PrivateLinearValue, ReverseKnn
from labelwall.teacher.mechanisms.votes import PrivateKnn
from labelwall.wall.datasets.config import DataConfig
from labelwall.wall.errors import InvalidInput

PERSON = PrivacyConfig("person")
LINEAR, CELLS = PrivateLinear(sigma=9.0), ReverseKnn(sigma=9.0)


def load(tmp_path: Path, text: str, *overrides: str) -> Config:
    path = tmp_path / "c.yaml"
    path.write_text("data: {source: mnist5k}\nbudget: {epsilon: 1000.0}\n" + text)
    return parse(["--config", str(path), *overrides], "test")[0]


RUN = "mechanism: {kind: gnmax, teachers: 9, sigma_vote: 3.0}\nrounds: [{queries: 3}]\n"
ROUNDS = (
    "rounds: [{queries: 3}, {queries: 4, mechanism: {kind: gnmax, teachers: 7}}, "
    "{queries: 5, mechanism: {k: 200}}]\n"
)


def test_a_files_kind_decides(tmp_path: Path) -> None:
    assert load(tmp_path, RUN).mechanism == Gnmax(teachers=9, sigma_vote=3.0)
    plain = "mechanism: {k: 9, threshold: 3}\nrounds: [{queries: 3}]\n"
    assert load(tmp_path, plain).mechanism == PrivateKnn(k=9, threshold=3)


def test_a_round_has_its_own_kind(tmp_path: Path) -> None:
    config = load(tmp_path, ROUNDS)
    assert [r.mechanism for r in config.rounds] == [None, Gnmax(teachers=7), PrivateKnn(k=200)]
    kinds = [entry.mechanism.kind for entry in config.priced()]
    assert kinds == ["private_knn", "gnmax", "private_knn"]


@pytest.mark.parametrize("option", [["--mechanism.teachers=5"], ["--mechanism.teachers", "5"]])
def test_overrides_reach_the_files_mechanism(tmp_path: Path, option: list[str]) -> None:
    assert load(tmp_path, RUN, *option).mechanism == Gnmax(teachers=5, sigma_vote=3.0)


@pytest.mark.parametrize(
    "option", [["--mechanism.kind", "private_knn"], ["--mechanism.kind=private_knn"]]
)
def test_another_kind_replaces_the_files_mechanism_and_nothing_else(
    tmp_path: Path, option: list[str]
) -> None:
    config = load(tmp_path, RUN + "seed: 7\n", *option, "--mechanism.k", "250")
    assert (config.mechanism, config.seed) == (PrivateKnn(k=250), 7)


def test_what_is_printed_loads_again(tmp_path: Path) -> None:
    config = load(tmp_path, RUN + "caps: {asked: 3}\n")
    assert load(tmp_path, to_yaml(config)) == config


MISTAKES = {
    "unknown kind": (
        RUN,
        ["--mechanism.kind", "nonsense"],
        "`mechanism.kind` must be one of private_knn, .*gnmax.*'nonsense'",
    ),
    "unknown kind in a file": (
        RUN.replace("gnmax", "nonsense"),
        [],
        "`mechanism.kind` must be one of .*'nonsense'",
    ),
    "unknown kind of a round": (
        ROUNDS.replace("gnmax", "nonsense"),
        [],
        "`mechanism.kind` must be one of .*'nonsense'",
    ),
    "another kind's setting": (
        RUN,
        ["--mechanism.kind", "private_knn", "--mechanism.teachers", "1"],
        "unknown .*mechanism.teachers",
    ),
    "a round's unknown setting": (
        ROUNDS.replace("teachers", "teacherz"),
        [],
        "unknown setting `mechanism.teacherz`. Did you mean.*mechanism.teachers",
    ),
    "a round's bad value": (ROUNDS.replace("7", "many"), [], "mechanism.teachers.*many"),
    "no file": ("", ["--config", "nowhere.yaml"], "nowhere.yaml"),
    "no YAML": ("", ["--config", "broken.yaml"], "broken|YAML"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_line(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.yaml").write_text("a: [")
    text, options, expected = MISTAKES[name]
    with pytest.raises((BadSetting, InvalidInput), match=expected) as caught:
        load(tmp_path, text, *options)
    assert len(str(caught.value).splitlines()) == 1


def test_help_shows_the_chosen_kind(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--mechanism.kind", "gnmax", "--help"], "test")
    shown = capsys.readouterr().out
    assert "--mechanism.teachers" in shown
    assert "private_knn, " in " ".join(shown.split())


def configured(mechanism: Mechanism, privacy: PrivacyConfig = PERSON) -> Config:
    bounds = [0.0, 1.0] if mechanism.label_space == "value" else []
    data = DataConfig(source="arrays", path="data.npz", labels=mechanism.label_space, bounds=bounds)
    rounds = [RoundConfig(), RoundConfig(mechanism=replace(mechanism))]
    return Config(data=data, mechanism=mechanism, rounds=rounds, privacy=privacy)


@pytest.mark.parametrize(
    ("mechanism", "name", "number"),
    [(CELLS, "parts", 4096), (LINEAR, "gain", 2), (PrivateLinearValue(sigma=9.0), "gain", 1)],
)
def test_a_plan_for_persons_names_what_rows_do_not_have(
    mechanism: Mechanism, name: str, number: int
) -> None:
    """Values of persons are averaged alone."""
    new = configured(mechanism)
    assert [slot.mechanism[name] for slot in new.plan().slots] == [number, number]
    rows = configured(mechanism, PrivacyConfig()).plan().slots
    assert all(slot.mechanism[name] is None for slot in rows)


@pytest.mark.parametrize(("mechanism", "name"), [(CELLS, "parts"), (LINEAR, "gain")])
def test_a_recorded_plan_is_kept(mechanism: Mechanism, name: str) -> None:
    """A number that is left out is the ledger's; one that is given is another plan."""
    new, single = configured(mechanism), configured(replace(mechanism, **{name: 1}))
    plan = single.plan()
    assert all(slot.mechanism[name] == 1 for slot in plan.slots)
    assert new.plan() != plan
    assert new.recorded(plan).plan() == plan
    assert new.recorded(new.plan()).plan() == new.plan()
    given = configured(replace(mechanism, **{name: 3}))
    assert given.recorded(plan).plan() == given.plan() != plan
    assert new.as_given(given).plan() == given.plan()


def test_only_the_entries_of_a_run_take_all_of_a_configuration() -> None:
    """Rooms below them have what they need of it (config/parts.py)."""
    run = Path(__file__).parents[3] / "experiment" / "run"
    takers = [path.stem for path in run.glob("*.py") if "config.config import" in path.read_text()]
    assert sorted(takers) == ["places", "predict", "rounds"]
