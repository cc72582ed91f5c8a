"""A file is written whole or not at all, and an error names it."""

import errno
import os
from pathlib import Path

import pytest

from labelwall.wall.errors import LabelwallError, reason_of
from labelwall.wall.files import reading, whole


@pytest.mark.parametrize(
    ("number", "said"), [(errno.ENOSPC, "the disk is full"), (errno.EFBIG, "File too large")]
)
def test_a_disk_that_takes_no_more_is_named_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    path = tmp_path / "kept.json"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=os.strerror(number)) as refusal, whole(path) as file:
        file.write(b"new")
    assert reason_of(refusal.value).startswith(f"{path}: {said}")
    assert [found.read_text() for found in tmp_path.iterdir()] == ["old"]  # no part takes the room


def test_what_does_not_load_is_named_with_its_cure(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    with pytest.raises(LabelwallError, match=r"kept.json is damaged\. Delete it"), reading(path):
        raise ValueError("no JSON")
    with pytest.raises(FileNotFoundError), reading(path):  # is another fault
        path.read_text()
