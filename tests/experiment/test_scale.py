"""Whole runs over shards: the same releases, ledger and student as over rows in one piece."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from labelwall import pipeline
from labelwall.experiment.config.settings import config_parser, parse
from labelwall.experiment.run.console import Console
from labelwall.experiment.run.rounds import run
from labelwall.experiment.run.serving import app_of
from labelwall.experiment.run.teachers import custody
from labelwall.teacher.service.config import ServiceConfig
from labelwall.teacher.service.keys import Keys
from tests.experiment import tiny
from tests.seeded_noise import SeededNoise
from tests.teacher.service.tiny import Made, served


def test_a_run_over_shards_is_the_run_over_one_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    for shards in ("0", "3"):
        args = ["--config", "config.yaml", "--scale.shards", shards]
        config = parse(config_parser("run", ""), args)[0]
        run(config, tmp_path / shards, entropy=SeededNoise(3), console=Console(quiet=True))
    one, other = (tmp_path / "0", tmp_path / "3")
    assert len(list((tmp_path / "3.custodian" / "shards-3").glob("*/features-*"))) == 6
    for number in (1, 2):
        for name in ("answers.npz", "student.safetensors"):
            path = Path(f"round_{number}") / name
            assert (one / path).read_bytes() == (other / path).read_bytes()
    spent = [json.loads((folder / "summary.json").read_text())["rounds"] for folder in (one, other)]
    first, second = ([[r["asked"], r["answered"]] for r in rounds] for rounds in spent)
    assert first == second


def test_settings_that_need_all_rows_in_one_process_are_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write(tmp_path)
    (tmp_path / "data.npz").unlink()
    monkeypatch.chdir(tmp_path)
    gnmax = [
        "--mechanism.kind",
        "gnmax",
        "--mechanism.teachers",
        "5",
        "--mechanism.classifier",
        "cnn",
    ]
    text = tiny.CONFIG.replace(
        "mechanism: {k: 15, threshold: 4, sigma_screen: 3.0, sigma_vote: 3.0, "
        "sampling_probability: 0.2}",
        "",
    )
    (tmp_path / "config.yaml").write_text(text)
    args = ["run", "--config", "config.yaml", *gnmax, "--run_dir", "out", "--scale.shards", "2"]
    assert pipeline.main(args) == 2
    assert "scale.shards" in capsys.readouterr().err


def test_a_budget_for_each_analyst_is_refused_before_a_directory_is_made_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    each = ["--service.budget", "per_analyst", "--scale.shards", "2"]
    serve = ["serve", "--config", "config.yaml", "--custodian_dir", "store"]
    assert pipeline.main([*serve, *each]) == 2
    assert "`scale.shards` must be 0 with service.budget" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_a_service_says_where_the_rows_are_and_how_far_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the page, in public figures; progress in percent, on the custodian's terminal alone."""
    tiny.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    args, heard, store = ["--config", "config.yaml", "--scale.shards", "3"], [], tmp_path / "store"
    config = parse(config_parser("serve", ""), args)[0]
    monkeypatch.setattr(Console, "progress", lambda self, *now: heard.append(now))
    opened, keys = custody(config, store, unsafe=True), Keys(store)
    app = app_of(config, ServiceConfig(port=0), opened, keys, SeededNoise(1))
    assert heard == [("taking in private rows (percent)", 100, 100)]
    token = keys.add("carol", "custodian")
    with served(Made(app, opened, {})) as url:
        page = httpx.get(url, auth=("", token), trust_env=False, timeout=60)
        assert "in 3 shards, backend local" in page.text
    assert len(heard) == 1
