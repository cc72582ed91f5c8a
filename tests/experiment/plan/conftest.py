import pytest

from labelwall.experiment.plan import candidates, ind_knn


@pytest.fixture
def small_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds instead of a minute."""
    monkeypatch.setattr(candidates, "SAMPLING", (0.5,))
    monkeypatch.setattr(ind_knn, "LABEL_NOISE", ind_knn.LABEL_NOISE[::2])
    monkeypatch.setattr(ind_knn, "ASKED", (0.25, 1.0))
