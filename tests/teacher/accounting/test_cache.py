"""Curves on disk: served as they were computed, done without where they can not be kept, and read
by no audit."""

from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.accounting import cache, curves
from labelwall.teacher.accounting.curves import argmax_rdp

pytestmark = pytest.mark.usefixtures("fresh_cache")
ORDERS = np.array([2.0, 9.0, 60.0])
NOISE = {"sigma": 2.0, "sampling_probability": 0.3}


def test_an_order_costs_the_same_whatever_others_are_asked_for(monkeypatch):
    """Computed alone, with its neighbours, from the disk, and again without a disk."""
    alone = [argmax_rdp(ORDERS[[i]], **NOISE)[0] for i in range(3)]
    with monkeypatch.context() as kept:
        kept.setattr(curves, "argmax_log_excess", lambda *_, **__: pytest.fail("again"))
        assert argmax_rdp(ORDERS, **NOISE).tolist() == alone
    for name in cache.folder().iterdir():
        name.unlink()
    assert argmax_rdp(ORDERS[:2], **NOISE).tolist() == alone[:2]
    assert argmax_rdp(ORDERS, **NOISE).tolist() == alone


def test_a_damaged_file_is_computed_again():
    first = argmax_rdp(ORDERS[:1], **NOISE)
    (path,) = cache.folder().iterdir()
    whole = path.read_bytes()
    flipped = whole[:36] + bytes([whole[36] ^ 1]) + whole[37:]
    for damaged in (b"", whole[:-1], flipped, whole + b"x" * 8):
        path.write_bytes(damaged)
        assert argmax_rdp(ORDERS[:1], **NOISE) == first
        assert path.read_bytes() == whole


def test_a_folder_that_can_not_be_written_is_done_without(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert np.isfinite(argmax_rdp(ORDERS[:1], **NOISE)).all()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_machine_without_a_home_directory_has_curves(monkeypatch):
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert np.isfinite(argmax_rdp(ORDERS[:1], **NOISE)).all()


def test_who_writes_in_the_users_own_folder_is_believed_and_not_by_an_audit(monkeypatch, tmp_path):
    true = argmax_rdp(ORDERS[:1], **NOISE)
    forged = lambda path, *_: -30.0 if path is not None else None  # noqa: E731
    monkeypatch.setattr(cache, "_read", forged)
    assert argmax_rdp(ORDERS[:1], **NOISE) < true
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    with cache.computed_anew():
        assert argmax_rdp(ORDERS[:1], **NOISE) == true
    assert not (tmp_path / "new").exists()
