"""Whole runs share a budget only where a test asks for it."""

from pathlib import Path

import pytest

from tests.experiment import tiny


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working folder, with a tiny experiment."""
    tiny.write(tmp_path)
    return tmp_path


@pytest.fixture
def one_budget() -> None:
    """A test's runs on the same rows share a budget, as they do for users."""


@pytest.fixture(autouse=True)
def budget_each(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere each run folder has a budget: many settings are tried on the same tiny rows."""
    if "one_budget" not in request.fixturenames:
        monkeypatch.setattr("labelwall.teacher.custody.places.place_of", lambda data: None)
