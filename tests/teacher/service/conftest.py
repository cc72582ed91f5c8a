"""A service for tests that only look."""

import pytest

from tests.teacher.service import tiny


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One service for the tests of a file."""
    made = tiny.make(tmp_path_factory.mktemp("shared"))
    with tiny.served(made):
        yield made


@pytest.fixture
def made(tmp_path):
    """A new service."""
    return tiny.make(tmp_path)
