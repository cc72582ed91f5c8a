"""labelwall: differentially private students from private nearest-neighbour teachers."""

from __future__ import annotations

import runpy
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent

_START = """
import runpy, sys
root, module = sys.argv[1:3]
del sys.argv[1:3]
runpy.run_path(root + "/__init__.py")["run"](module)
"""


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs one of this package's modules in a process of its own.

    It is this copy of the package, installed or a checkout, whatever else is on the new
    process's path; the folder it is called from is not (``python -P``).
    """
    return [sys.executable, "-P", "-c", _START, str(ROOT), module, *arguments]


def run(module: str) -> None:
    """Run ``labelwall.MODULE`` as the main program, with this folder as the package.

    The folder may have another name, so a link called `labelwall` is put on the path; processes
    that libraries start find the package there, too.
    """
    with tempfile.TemporaryDirectory(prefix="labelwall-") as folder:
        (Path(folder) / "labelwall").symlink_to(ROOT)
        sys.path.insert(0, folder)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
