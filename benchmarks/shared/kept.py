"""Measurements saved as JSON, so that an interrupted benchmark resumes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def kept(folder: Path | None, name: str, measure: Callable[[], Any]) -> Any:
    """``measure()``, run once for each ``name`` in ``folder``, or every time where that is None.

    The value passes through JSON. Use a new folder for every setting that the name does not show.
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
