import pytest

from labelwall.experiment.plan import candidates, search


@pytest.fixture
def small_grids(monkeypatch) -> None:
    """Seconds instead of a minute."""
    monkeypatch.setattr(candidates, "SAMPLING", (0.5,))
    monkeypatch.setattr(candidates, "LEVELS", candidates.LEVELS[::2])
    monkeypatch.setattr(search, "ASKED", (1.0, 0.25))
