"""A pretrained student of every kind of label, unit, period and place of the private side."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import labelwall as lw
from labelwall import pipeline
from labelwall.experiment.config.settings import config_of
from labelwall.experiment.run.teachers import KEY
from labelwall.experiment.whole_run import run
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.service.service_config import ServiceConfig
from labelwall.wall.console import Console
from tests.experiment.shard_services import in_a_thread, token
from tests.experiment.test_refined import MODEL, images, ran, settings

__all__ = ["settings"]  # a fixture
BESIDE = f"beside/pretrained/{MODEL}@32"
pytestmark = pytest.mark.slow


def changed(settings: dict[str, Any], truth: Any = None, **arrays: Any) -> None:
    """Give private and test rows other labels, by ``truth`` of their classes, or more arrays."""
    path = settings["data"]["path"]
    with np.load(path) as stored:
        found = dict(stored) | arrays
    if truth is not None:
        found |= {name: truth(found[name]) for name in ("private_y", "test_y")}
    np.savez(path, **found)


def check_refined(told: dict[str, Any]) -> None:
    first, second = told["rounds"][:2]
    assert first["taught"]
    assert (second["features_of"], second["extractor"]) == (1, BESIDE)


def test_attributes(settings, tmp_path) -> None:
    changed(settings, lambda y: np.array([[1, 0, 0], [0, 1, 0], [1, 0, 1]])[y])
    settings["data"] |= {"labels": "attributes", "classes": ["red", "green", "blue"]}
    mechanism = {"kind": "private_linear_attributes", "steps": 3, "axes": 8}
    told = ran(settings | {"rounds": 2 * [{"mechanism": mechanism}]}, tmp_path / "out")
    check_refined(told)
    assert told["test_accuracy"] > 0.8


def test_values(settings, tmp_path) -> None:
    changed(settings, lambda y: np.array([-3.0, 0.5, 4.0])[y])
    settings["data"] |= {"labels": "value", "bounds": [-5, 5]}
    mechanism = {"kind": "private_linear_value", "steps": 3, "axes": 8}
    told = ran(settings | {"rounds": 2 * [{"mechanism": mechanism}]}, tmp_path / "out")
    check_refined(told)
    assert lw.load(tmp_path / "out").student is not None


def test_persons(settings, tmp_path) -> None:
    changed(settings, private_person=np.array([f"p{number // 3}" for number in range(90)]))
    told = ran(settings | {"privacy": {"unit": "person"}}, tmp_path / "out")
    check_refined(told)
    assert told["unit"] == "person"


def test_isolated(settings, tmp_path) -> None:
    settings["custodian_dir"] = str(tmp_path / "custody")
    out, console = tmp_path / "out", Console(quiet=True)
    run(config_of(settings), out, entropy=None, console=console, isolate=True)
    check_refined(json.loads((out / "summary.json").read_text()))


def test_an_update_begins_with_the_network_of_the_first_period(settings, tmp_path) -> None:
    config, out = tmp_path / "config.yaml", str(tmp_path / "out")
    settings |= {"budget": {"epsilon": 400.0, "delta": 1e-5, "periods": 2}}
    config.write_text(yaml.safe_dump(settings | {"custodian_dir": str(tmp_path / "custody")}))
    run_it = ["run", "--config", str(config), "--run_dir", out, "--quiet"]
    assert pipeline.main(run_it) == 0
    changed(settings, private_x=images(90, 5)[0], private_y=images(90, 5)[1])
    assert pipeline.main(["update", "--run_dir", out, "--quiet"]) == 0
    told = json.loads(Path(out, "summary.json").read_text())
    check_refined(told)
    assert [entry["features_of"] for entry in told["rounds"]] == [0, 1, 1, 1]
    assert [entry["extractor"] for entry in told["rounds"][1:]] == 3 * [BESIDE]


def test_two_custodians_by_services(settings, tmp_path, monkeypatch) -> None:
    urls, keys, out = list[str](), list[str](), tmp_path / "out"
    with ExitStack() as stack:
        for number in range(2):
            path, store = tmp_path / f"data_{number}.npz", tmp_path / f"store_{number}"
            with np.load(settings["data"]["path"]) as stored:
                arrays = dict(stored)
            x, y = images(60, 20 + number)
            np.savez(path, **(arrays | {"private_x": x, "private_y": y}))
            own = settings | {"data": settings["data"] | {"path": str(path)}}
            keys.append(token(store))
            service = ServiceConfig(port=0, backbones=[f"timm/{MODEL}"])
            running = in_a_thread(config_of(own), store, SystemEntropy(), service)
            urls.append(stack.enter_context(running))
        monkeypatch.setenv(KEY, ",".join(keys))
        asked = config_of(settings | {"teacher": urls})
        run(asked, out, entropy=None, console=Console(quiet=True))
    told = json.loads((out / "summary.json").read_text())
    check_refined(told)
