"""Fixtures that several folders of tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def realdata_root() -> Path:
    """The folder with real data sets in torchvision's layout: LABELWALL_DATA, by default ../shared/data; skips without it."""
    root = Path(os.environ.get("LABELWALL_DATA") or REPOSITORY.parent / "shared" / "data")
    if not root.is_dir():
        pytest.skip(f"no real data sets: {root} is not a folder. Name one in LABELWALL_DATA.")
    return root
