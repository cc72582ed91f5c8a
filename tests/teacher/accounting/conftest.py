"""An empty cache of curves."""

import pytest


@pytest.fixture
def fresh_cache(tmp_path_factory, monkeypatch):
    """Another one for each test, so that none is served with what another computed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
