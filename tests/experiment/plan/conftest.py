import pytest

from labelwall.experiment.plan import tuning


@pytest.fixture
def small_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds instead of a minute."""
    monkeypatch.setattr(tuning, "SAMPLING", (0.5,))
    monkeypatch.setattr(tuning, "LEVELS", tuning.LEVELS[::2])
    monkeypatch.setattr(tuning, "ASKED", (1.0, 0.25))
