"""A place for an anchor."""

from __future__ import annotations

from pathlib import Path

import pytest

from labelwall.teacher.ledger.database import Place


@pytest.fixture(params=["file", "server"])
def anchor(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place for an anchor. A test that takes it runs on both kinds."""
    return (
        tmp_path / "anchor.json"
        if request.param == "file"
        else request.getfixturevalue("postgres").schema()
    )
