"""Finished runs with their reports."""

import shutil
from pathlib import Path

import pytest

from labelwall.experiment.report.report import write_report
from tests.experiment.report.finished_run import finished_run


@pytest.fixture(scope="module", params=[False])
def rendered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = finished_run(tmp_path_factory.mktemp("rendered"), unsafe=request.param)
    write_report(run_dir)
    return run_dir


@pytest.fixture
def copied(rendered: Path, tmp_path: Path) -> Path:
    """The run's folder and its data, to be changed."""
    shutil.copytree(rendered.parent, tmp_path, dirs_exist_ok=True)
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(rendered.parent), str(tmp_path)))
    return tmp_path / "run"
