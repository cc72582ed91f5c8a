"""An analyst without a configuration asks with the features that the custodian's one has."""

from contextlib import closing
from dataclasses import asdict, replace

import pytest

from labelwall.experiment import whole_run
from labelwall.experiment.config.config import Config
from labelwall.experiment.plan import show
from labelwall.experiment.run.served import served
from labelwall.experiment.run.teachers import budget_of
from labelwall.student import several_devices
from labelwall.student.public_settings import CountedPlan, ServedFeatures
from labelwall.teacher.custody.groups import BudgetConfig, RoundConfig
from labelwall.teacher.custody.solver import solved
from labelwall.teacher.mechanisms.registry import Auto
from labelwall.teacher.mechanisms.sums import PrivateLinear
from labelwall.wall.client import RemoteTeacher
from labelwall.wall.console import Console
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.datasets.texts import model_name
from labelwall.wall.errors import InvalidInput, Refused
from tests.teacher.service import tiny

CHOSEN = ServedFeatures(
    features="fourier", whiten=7, by_count=[CountedPlan(records=9000, features="raw", axes=16)]
)
TABLE = DataConfig("table", public="u.csv", test="t.csv", label="y")


@pytest.fixture(scope="module")
def plan():
    mechanism = PrivateLinear(steps=30, axes=4)
    fixed = Config(data=TABLE, mechanism=mechanism, rounds=[RoundConfig()])
    return fixed.scheduled(solved(fixed.schedule)).private_side().plan()


def analyst(**settings):
    teacher = "http://127.0.0.1:1"
    return Config(data=TABLE, mechanism=Auto(), rounds=[RoundConfig()], teacher=teacher, **settings)


def test_what_the_custodian_asks_with_is_taken(plan):
    found = served(analyst(), plan, CHOSEN)
    assert (found.features, found.whiten, found.by_count) == ("fourier", 7, CHOSEN.by_count)
    again = analyst().chosen(found)  # as a run is resumed
    assert again == found
    assert served(analyst(whiten=3), plan, CHOSEN).whiten == 3
    assert served(analyst(features="fourier"), plan, CHOSEN).whiten == 7


def test_white_of_deep_greys_is_taken_unless_it_is_given(plan):
    offered = replace(CHOSEN, white=4095.0)
    found = served(analyst(), plan, offered)
    assert found.data.white == 4095.0
    assert analyst().chosen(found) == found
    own = replace(analyst(), data=replace(TABLE, white=255.0))
    assert served(own, plan, offered).data.white == 255.0
    assert own.chosen(served(own, plan, offered)).data.white == 255.0


def test_weights_that_only_the_custodian_has_are_asked_for(plan):
    offered = ServedFeatures(features="timm/resnet18", weights="own.safetensors", whiten=7)
    with pytest.raises(InvalidInput, match=r"--features timm/resnet18.* own\.safetensors"):
        served(analyst(), plan, offered)
    own = analyst(features="timm/resnet18", weights="here/own.safetensors")
    found = served(own, plan, offered)
    assert (found.weights, found.whiten) == ("here/own.safetensors", 7)


def killed(_: object) -> None:
    raise KeyboardInterrupt


def test_a_plan_that_costs_less_than_the_budget_is_said(plan, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(whole_run, "service_plan", lambda _: (plan, CHOSEN))
    monkeypatch.setattr(show, "tell_columns", lambda *_: None)
    monkeypatch.setattr(
        several_devices,
        "require_devices",
        lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt),
    )
    for epsilon in (3.0, plan.epsilon):
        with pytest.raises(KeyboardInterrupt):
            whole_run.train(analyst(budget=BudgetConfig(epsilon=epsilon)), tmp_path, Console())
    told = capsys.readouterr()
    line = "the service's plan costs epsilon 1, below the budget of 3"
    assert (told.out + told.err).count(line) == 1


@pytest.mark.parametrize("own", [{"features": "bins"}, {"features": "box", "box": [[0.0, 1.0]]}])
def test_features_of_ones_own_are_kept(plan, own):
    found = served(analyst(**own), plan, CHOSEN)
    assert (found.features, found.box) == (own["features"], own.get("box", []))
    assert (found.whiten, found.by_count) == (0, [])


def test_texts_are_read_by_the_custodians_model_and_no_place_of_its_machine_is_told(plan):
    assert model_name("sentence//home/alice/small/") == model_name("sentence/of/small")
    offered = ServedFeatures(text_features=model_name("sentence//home/alice/small"))
    assert offered.text_features == "sentence/small"
    with pytest.raises(InvalidInput, match=r"sentence/small, or its folder.*Found 'hashed'"):
        served(analyst(), plan, offered)
    own = replace(analyst(), data=replace(TABLE, text_features="sentence/here/small"))
    assert served(own, plan, offered).data == own.data


def test_a_service_tells_them_and_another_reply_is_no_budget(tmp_path):
    made = tiny.make(tmp_path, features=asdict(CHOSEN))
    with tiny.served(made) as url, closing(RemoteTeacher(url, made.tokens["ann"])) as remote:
        assert remote.budget(budget_of)["features"] == CHOSEN
    made = tiny.make(tmp_path, features={"features": "nonsense"})
    with (
        tiny.served(made) as url,
        closing(RemoteTeacher(url, made.tokens["ann"])) as remote,
        pytest.raises((InvalidInput, Refused)),
    ):
        remote.budget(budget_of)
