"""A place for an anchor."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(params=["file", "server"])
def anchor(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A place for an anchor. A test that takes it runs on both kinds."""
    if request.param == "file":
        return tmp_path / "own.anchor"
    return request.getfixturevalue("postgres").schema()
