from __future__ import annotations

import pytest

from labelwall.experiment.plan import ind_knn, votes


@pytest.fixture
def small_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds instead of a minute; one argmax curve."""
    monkeypatch.setattr(votes, "SIGMA_VOTE", (16.0,))
    monkeypatch.setattr(votes, "SIGMA_SCREEN", votes.SIGMA_SCREEN[2:13:2])
    monkeypatch.setattr(votes, "SAMPLING", (0.5,))
    monkeypatch.setattr(ind_knn, "LABEL_NOISE", ind_knn.LABEL_NOISE[::2])
    monkeypatch.setattr(ind_knn, "ASKED", (0.25, 1.0))
