"""Whole runs over shards: the same releases, ledger and student as over rows in one piece."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pipeline
from experiment.console import Console
from experiment.rounds import run
from experiment.settings import config_parser, parse
from teacher.privacy.unsafe import UnsafeTape
from tests.experiment import tiny


def test_a_run_over_shards_is_the_run_over_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    for shards in ("0", "3"):
        args = ["--config", "config.yaml", "--scale.shards", shards]
        config = parse(config_parser("run", "", args), args)[0]
        run(config, tmp_path / shards, entropy=UnsafeTape(3), console=Console(quiet=True))
    one, other = (tmp_path / "0", tmp_path / "3")
    assert len(list((tmp_path / "3.custodian" / "shards-3").glob("*/features-*"))) == 6
    for number in (1, 2):
        for name in ("answers.npz", "student.safetensors"):
            assert (one / f"round_{number}" / name).read_bytes() == (other / f"round_{number}" / name).read_bytes()
    spent = [json.loads((folder / "summary.json").read_text())["rounds"] for folder in (one, other)]
    assert [[r["asked"], r["answered"]] for r in spent[0]] == [[r["asked"], r["answered"]] for r in spent[1]]


def test_settings_that_need_all_rows_in_one_process_are_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write(tmp_path)
    (tmp_path / "data.npz").unlink()
    monkeypatch.chdir(tmp_path)
    gnmax = ["--mechanism.kind", "gnmax", "--mechanism.teachers", "5", "--mechanism.classifier", "cnn"]
    text = tiny.CONFIG.replace(
        "mechanism: {k: 15, threshold: 4, sigma_screen: 3.0, sigma_vote: 3.0, sampling_probability: 0.2}", ""
    )
    (tmp_path / "config.yaml").write_text(text)
    args = ["run", "--config", "config.yaml", *gnmax, "--run_dir", "out", "--scale.shards", "2"]
    assert pipeline.main(args) == 2
    assert "scale.shards" in capsys.readouterr().err
