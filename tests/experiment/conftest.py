"""Whole runs draw the pictures of their reports only where a test asks for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest


class Blank:
    """In place of the module of pictures: each is the same empty one."""

    def __getattr__(self, name: str) -> Callable[..., bytes]:
        return lambda *numbers, **names: b"<svg/>"


@pytest.fixture
def drawn() -> None:
    """The reports that a test's runs write have their pictures."""


@pytest.fixture(autouse=True)
def blank(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere they are blank: the eight of one report take longer than a tiny run."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("labelwall.experiment.report.report.plots", Blank())
