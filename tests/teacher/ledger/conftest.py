"""A place for an anchor."""

import pytest


@pytest.fixture(params=["file", "server"])
def anchor(request, tmp_path):
    """A place for an anchor. A test that takes it runs on both kinds."""
    if request.param == "file":
        return tmp_path / "own.anchor"
    return request.getfixturevalue("postgres").schema()
