"""Finished runs with their reports."""

import shutil
from pathlib import Path

import pytest

from labelwall.experiment.report.report import write_report
from tests.experiment.report.finished_run import finished_run


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = finished_run(tmp_path_factory.mktemp("rendered"))
    write_report(run_dir)
    return run_dir


@pytest.fixture
def copied(rendered: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(rendered, tmp_path / "copy"))


@pytest.fixture(autouse=True)
def blank() -> None:
    """No picture is: all that a report shows is drawn here."""
