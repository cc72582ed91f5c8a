"""What a benchmark measured, kept as JSON: an interrupted run goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def kept(folder: Path | None, name: str, measure: Callable[[], Any]) -> Any:
    """``measure()``, once for each ``name`` in ``folder``; every time where that is None. The value passes through JSON.

    What the name does not say, the folder's owner keeps the same: another setting needs another
    folder.
    """
    if folder is None:
        return json.loads(json.dumps(measure()))
    path = folder / f"{name}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(measure()))
        unfinished.rename(path)
    return json.loads(path.read_text())
