"""Programs that tests start in processes of their own. All import this checkout."""

import os
from pathlib import Path

PROGRAMS = Path(__file__).parent
REPOSITORY = PROGRAMS.parents[1]


def environment(**more: str) -> dict[str, str]:
    """Environment variables of a program: this process's, one thread, and ``more``."""
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **more}
