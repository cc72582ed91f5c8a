"""No command tells anybody that it runs: no library asks for a name, reaches out, or marks the
home folder.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.experiment import tiny
from tests.programs import PROGRAMS, environment

APART = ["unshare", "--map-root-user", "--net", "--mount"]
COMMANDS = """
from labelwall import pipeline
from labelwall.wall.features import network  # embeds private images
for line in (
    "plan --config config.yaml",
    "run --config config.yaml --run_dir run --isolate",
    "run --config config.yaml --run_dir here --custodian_dir custody",
    "classify --student run --vectors rows.npy --out labels.csv",
    "export --student run --format onnx --out student.onnx",
    "compare --data data.npz --methods gnmax --student.steps 9 --threads 1 --out compared",
):
    assert pipeline.main(line.split()) == 0, line
"""


def told(folder: Path, code: str, seconds: int) -> tuple[dict[str, list[str]], set[str]]:
    """What is asked and reached while ``code`` runs, and so long after it, and the files that it
    makes in a new home."""
    if shutil.which("unshare") is None or subprocess.run([*APART, "true"]).returncode:
        pytest.skip("this machine allows no network of one's own (unshare)")
    home = folder / "home"
    home.mkdir()
    command = [*APART, sys.executable, str(PROGRAMS / "in_a_net_of_its_own.py"), code, str(seconds)]
    more = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}
    done = subprocess.run(
        command, cwd=folder, env=environment(**more), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    made = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
    return json.loads(done.stdout.splitlines()[-1]), made


def test_no_command_tells_that_it_runs(tmp_path: Path) -> None:
    tiny.write(tmp_path)
    tiny.np.save(tmp_path / "rows.npy", tiny.rows(5, 9)[0])
    heard, made = told(tmp_path, COMMANDS, 12)  # ONNX Runtime sends 10 seconds after it is loaded
    assert heard == {"asked": [], "reached": []}
    assert not [name for name in made if not name.startswith(".cache/labelwall/")], made


def test_the_check_can_fail(tmp_path: Path) -> None:
    """A name that a native library asks for is heard, a socket of Python's, a file in the home."""
    code = """
import ctypes, pathlib, socket
(pathlib.Path.home() / "deviceid").touch()
ctypes.CDLL(None).getaddrinfo(b"events.example.com", None, None, ctypes.byref(ctypes.c_void_p()))
try:
    socket.create_connection(("192.0.2.1", 80), timeout=1)
except OSError:
    pass
"""
    heard, made = told(tmp_path, code, 0)
    assert heard["asked"][0].startswith("events.example.com")  # then with the search domains
    assert heard["reached"] == ["192.0.2.1"]
    assert "deviceid" in made
