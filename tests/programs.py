"""How tests start this repository's programs: whatever folder they are in, they import it, and nothing that is installed."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def environment(**more: str) -> dict[str, str]:
    """This process's environment variables for a program of one thread, with more of them."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **more}
