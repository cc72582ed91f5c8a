"""The setting `device`, from the command line to the custodian's machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.experiment import tiny
from tests.experiment.checks import check_one_error

RUN = ["run", "--config", "config.yaml", "--run_dir", "out", "--device"]


def test_a_device_that_is_not_there_is_one_line_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available=False: None
    )
    check_one_error([*RUN, "cuda"], "`device` must be cpu on this machine. Found 'cuda'.", capsys)
    check_one_error([*RUN, "tpu"], "device", capsys)
    assert not list(tmp_path.glob("out/round_*/answers.npz"))
