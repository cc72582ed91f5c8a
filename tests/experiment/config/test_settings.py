"""Settings of a mechanism by its kind: from files and overrides, told apart, with one clear line
for a mistake.

A second mechanism is put next to the shipped one, so that the tests do not depend on which others
there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from labelwall.experiment.config import config as config_file
from labelwall.experiment.config import settings
from labelwall.experiment.config.config import Config
from labelwall.experiment.config.groups import BudgetConfig, CapsConfig
from labelwall.experiment.config.settings import BadSetting, config_parser, parse, to_yaml
from labelwall.teacher.mechanisms import registry
from labelwall.teacher.mechanisms.votes import PrivateKnn
from labelwall.wall.datasets.sources import DataConfig
from labelwall.wall.errors import InvalidInput


@dataclass(frozen=True)
class Other(PrivateKnn):
    """Another mechanism.

    Args:
        kind: the mechanism's name.
        tau: a number.
    """

    kind: Literal["other"] = "other"
    tau: float = 0.5


@dataclass(frozen=True)
class Round:
    """A round that may have either mechanism."""

    queries: int
    mechanism: PrivateKnn | Other | None = None
    caps: CapsConfig = field(default_factory=CapsConfig)
    share: float | None = None


@dataclass(frozen=True)
class Both(Config):
    """A Config that may have either mechanism."""

    data: DataConfig
    rounds: list[Round]
    budget: BudgetConfig = field(default_factory=lambda: BudgetConfig(epsilon=1000.0))


@pytest.fixture(autouse=True)
def two_mechanisms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.MECHANISMS, "other", Other)
    monkeypatch.setattr(settings, "Config", Both)
    monkeypatch.setattr(config_file, "Config", Both)


def load(tmp_path: Path, text: str, *overrides: str) -> Config:
    path = tmp_path / "c.yaml"
    path.write_text("data: {source: mnist5k}\n" + text)
    args = ["--config", str(path), *overrides]
    return parse(config_parser("test", ""), args)[0]


RUN = "mechanism: {kind: other, tau: 0.25, k: 9, threshold: 3}\nrounds: [{queries: 3}]\n"
ROUNDS = (
    "rounds: [{queries: 3}, {queries: 4, mechanism: {kind: other, tau: 0.75}}, "
    "{queries: 5, mechanism: {k: 200}}]\n"
)


def test_a_files_kind_decides(tmp_path: Path) -> None:
    assert load(tmp_path, RUN).mechanism == Other(tau=0.25, k=9, threshold=3)
    assert load(tmp_path, RUN.replace("kind: other, tau: 0.25, ", "")).mechanism == PrivateKnn(
        k=9, threshold=3
    )


def test_a_round_has_its_own_kind(tmp_path: Path) -> None:
    config = load(tmp_path, ROUNDS)
    assert [r.mechanism for r in config.rounds] == [None, Other(tau=0.75), PrivateKnn(k=200)]
    kinds = [entry.mechanism.kind for entry in config.priced()]
    assert kinds == ["private_knn", "other", "private_knn"]


def test_overrides_reach_the_files_mechanism(tmp_path: Path) -> None:
    assert load(tmp_path, RUN, "--mechanism.tau=0.125").mechanism == Other(
        tau=0.125, k=9, threshold=3
    )
    assert load(tmp_path, RUN, "--mechanism.k", "10").mechanism == Other(
        tau=0.25, k=10, threshold=3
    )


@pytest.mark.parametrize(
    "option", [["--mechanism.kind", "private_knn"], ["--mechanism.kind=private_knn"]]
)
def test_another_kind_replaces_the_files_mechanism_and_nothing_else(
    tmp_path: Path, option: list[str]
) -> None:
    config = load(tmp_path, RUN + "seed: 7\n", *option, "--mechanism.k", "250")
    assert (config.mechanism, config.seed) == (PrivateKnn(k=250), 7)


def test_what_is_printed_loads_again(tmp_path: Path) -> None:
    config = load(tmp_path, RUN + "caps: {asked: 3, answered: 2}\n")
    assert load(tmp_path, to_yaml(config)) == config


MISTAKES = {
    "unknown kind": (
        RUN,
        ["--mechanism.kind", "nonsense"],
        "`mechanism.kind` must be one of private_knn, .*other.*'nonsense'",
    ),
    "unknown kind in a file": (
        RUN.replace("other", "nonsense"),
        [],
        "`mechanism.kind` must be one of .*'nonsense'",
    ),
    "unknown kind of a round": (
        ROUNDS.replace("other", "nonsense"),
        [],
        "`mechanism.kind` must be one of .*'nonsense'",
    ),
    "another kind's setting": (
        RUN,
        ["--mechanism.kind", "private_knn", "--mechanism.tau", "1"],
        "unknown .*mechanism.tau",
    ),
    "a round's unknown setting": (
        ROUNDS.replace("tau", "tou"),
        [],
        "unknown setting `mechanism.tou`. Did you mean.*mechanism.tau",
    ),
    "a round's bad value": (ROUNDS.replace("0.75", "many"), [], "mechanism.tau.*many"),
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
    args = ["--mechanism.kind", "other", "--help"]
    with pytest.raises(SystemExit):
        parse(config_parser("test", ""), args)
    shown = capsys.readouterr().out
    assert "--mechanism.tau" in shown
    assert "private_knn, " in " ".join(shown.split())
