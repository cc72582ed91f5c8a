"""A place for an anchor."""

from pathlib import Path

import pytest

from labelwall.teacher.ledger import Place


@pytest.fixture(params=["file", "server"])
def anchor(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place for an anchor. A test that takes it runs on both kinds."""
    if request.param == "file":
        return tmp_path / "own.anchor"
    return request.getfixturevalue("postgres").schema()
