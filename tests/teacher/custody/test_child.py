"""A teacher in a child process: what it says is shown, and tells nothing of private rows."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from labelwall.teacher.custody import child, serving
from labelwall.teacher.custody.groups import RoundConfig
from labelwall.teacher.custody.private_settings import PrivateSide
from labelwall.teacher.mechanisms.sums import PrivateLinear
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.service.service_config import ServiceConfig
from labelwall.wall.console import Console
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.errors import LabelwallError
from labelwall.wall.progress import no_progress

FAILING = """
import os, sys
from labelwall.teacher.custody import child
def serve(*_, **__):
    os.write(2, b"a decoder's words on row 3001")
    print("a line for the run", file=sys.stderr)
    raise MemoryError("3001 rows do not fit")
child.serve = serve
child.main()
"""


@pytest.fixture
def side(tmp_path: Path) -> PrivateSide:
    mechanism = PrivateLinear(steps=1, noise_multiplier=50.0)
    rounds, place = [RoundConfig()], str(tmp_path / "custody")
    return PrivateSide(data=DataConfig(), mechanism=mechanism, rounds=rounds, custodian_dir=place)


def test_a_failure_to_start_tells_nothing_of_the_rows_and_the_custodians_log_does(side) -> None:
    assert side.directory is not None
    side.directory.mkdir()
    told = f"secret\n{json.dumps(asdict(side))}\n"
    command = [sys.executable, "-c", FAILING]
    ended = subprocess.run(command, input=told, capture_output=True, text=True, check=False)
    assert ended.stderr == f"a line for the run\n{child.PREFIX}{child.NOT_STARTED}\n"
    assert ended.returncode == 1
    assert "3001 rows do not fit" in (side.directory / "errors.log").read_text()


@pytest.mark.parametrize(
    ("last", "shown"),
    [
        ("MemoryError: 3001 rows", child.NOT_STARTED),
        ("", child.NOT_STARTED),
        ("labelwall: `data` must be", "`data` must be"),
    ],
)
def test_a_run_shows_no_other_last_words_than_those_meant_for_it(
    last: str, shown: str, side, monkeypatch
) -> None:
    dying = f"import sys; sys.exit({last!r} or 1)"
    real = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda _, **more: real([sys.executable, "-c", dying], **more)
    )
    with pytest.raises(LabelwallError) as caught, child.child(side, pytest.fail):
        pass
    assert str(caught.value) == shown


@pytest.mark.parametrize("child_of", ["secret", None])
def test_a_child_shows_no_progress_on_private_rows(child_of, side, monkeypatch) -> None:
    heard = []

    def app_of(*_: object, progress: object, **__: object) -> None:
        heard.append(progress)
        raise KeyboardInterrupt

    monkeypatch.setattr(serving, "app_of", app_of)
    with pytest.raises(KeyboardInterrupt):
        serving.serve(side, ServiceConfig(), entropy=SystemEntropy(), child_of=child_of)
    (progress,) = heard
    assert (progress is no_progress) == (child_of is not None)
    assert child_of or isinstance(progress.__self__, Console)
