"""A service for tests that only look."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.teacher.service import tiny


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tiny.Made]:
    """One service for the tests of a file."""
    made = tiny.make(tmp_path_factory.mktemp("shared"))
    with tiny.served(made):
        yield made


@pytest.fixture
def made(tmp_path: Path) -> tiny.Made:
    """A new service."""
    return tiny.make(tmp_path)
