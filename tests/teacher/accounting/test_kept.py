"""Certificates on disk: kept for this version alone, and read by no audit."""

from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.accounting import accountant
from labelwall.teacher.accounting.accountant import certificates, certified_epsilon
from labelwall.teacher.accounting.curves import cache as curve_cache
from labelwall.teacher.accounting.plan import Plan, Release, Slot

SCREEN = {"max_votes": 3, "threshold": 2, "sigma": 4.0, "sampling_probability": 0.3}
VOTES = {"sigma": 3.0, "sampling_probability": 0.3}
RELEASES = Release("screen", "screening", SCREEN, 20), Release("aggregate", "argmax", VOTES, 5)
SMALL = Plan(10.0, 1e-5, (Slot({"kind": "test"}, RELEASES),))


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(accountant, "_KEPT_SECONDS", 0.0)
    accountant._certificates.cache_clear()
    yield
    accountant._certificates.cache_clear()


def test_a_machine_without_a_home_directory_has_certificates(monkeypatch):
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert certified_epsilon(SMALL) > 0


@pytest.mark.parametrize("forged", [-5.0, np.nan, 0.01])
def test_kept_numbers_that_are_no_epsilon_are_computed_again(monkeypatch, tmp_path, forged):
    """Who writes in the user's own folder is believed here, and not by an audit."""
    count, true = 2 * len(accountant._NOTES), certified_epsilon(SMALL)

    def read(path, name, n):
        return np.full(n, forged) if n == count and path is not None else None

    monkeypatch.setattr(curve_cache, "_read", read)
    accountant._certificates.cache_clear()
    assert (certified_epsilon(SMALL) == true) == (forged != 0.01)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    accountant._certificates.cache_clear()
    with curve_cache.computed_anew():
        assert certified_epsilon(SMALL) == true
    assert not (tmp_path / "new").exists()


def test_certificates_that_took_long_are_kept_for_this_source_alone(monkeypatch, tmp_path):
    first = certificates(SMALL)
    kept = set((tmp_path / "cache" / "labelwall" / "curves").iterdir())
    monkeypatch.setattr(accountant, "_computed", lambda *_: pytest.fail("again"))
    accountant._certificates.cache_clear()
    assert certificates(SMALL) == first
    monkeypatch.setattr(accountant, "_source", lambda: ["another version"])
    accountant._certificates.cache_clear()
    with pytest.raises(pytest.fail.Exception, match="again"):
        certificates(SMALL)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(accountant, "_KEPT_SECONDS", 3600.0)
    noise = {"sigma": 60.0, "sensitivity": 2.0, "sampling_probability": 1.0}
    quick = Plan(10.0, 1e-5, (Slot({"kind": "test"}, (Release("h", "gaussian", noise, 3),)),))
    assert certificates(quick)["pld_smoothed"].order is None
    # Too fast to be kept.
    assert set((tmp_path / "cache" / "labelwall" / "curves").iterdir()) == kept
