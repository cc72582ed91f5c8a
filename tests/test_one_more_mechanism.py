"""One more mechanism: a file, a line of the registry, entries for auditor, audits and candidates.

A copy of the repository gets tests/nearest_record; then every command and the contract's tests run.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.experiment import tiny
from tests.programs import REPOSITORY

LEFT_OUT = shutil.ignore_patterns(".*", "build", "runs", "__pycache__", "*.egg-info", "figures")
IMPORT = "from .nearest_record import NearestRecord\n"
ROOMS = {
    "mechanism.py": "teacher/mechanisms/nearest_record.py",
    "audit.py": "teacher/audits/nearest_record.py",
}
ENTRIES = {
    "teacher/ledger/auditor/mechanisms.py": """
KINDS["nearest_record"] = Known(
    EPSILON,
    lambda f: [Priced("response", "pure", {"epsilon": f["epsilon"]}, results.label())],
)
""",
    "teacher/audits/cases.py": """
from .nearest_record import answers

ATTACKS["nearest_record"] = answers, _with(epsilon=2.0)
""",
    "experiment/plan/candidates.py": """
PLANNERS["nearest_record"] = None
""",
}
MECHANISM = "mechanism: {kind: nearest_record, epsilon: 4.0}\n"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository with one more mechanism, and the tiny experiment's data in ``work``."""
    root = tmp_path_factory.mktemp("copy") / "labelwall"
    shutil.copytree(REPOSITORY, root, ignore=LEFT_OUT)
    for name, room in ROOMS.items():
        shutil.copy(REPOSITORY / "tests" / "nearest_record" / name, root / room)
    registry = root / "teacher" / "mechanisms" / "registry.py"
    text = registry.read_text()
    place = "from .sums import"
    text = text.replace(place, IMPORT + place, 1).replace(
        "    IndKnn,\n", "    IndKnn,\n    NearestRecord,\n", 1
    )
    registry.write_text(text)
    for name, entry in ENTRIES.items():
        with (root / name).open("a") as table:
            table.write(entry)
    work = root.parent / "work"
    tiny.write(work)
    lines = [
        line for line in tiny.CONFIG.splitlines() if not line.startswith(("mechanism", "caps"))
    ]
    (work / "config.yaml").write_text("\n".join(lines) + "\n" + MECHANISM)
    return root


def python(copy: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(copy.parent), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_CURRENT_TEST", None)
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def run(copy: Path, *arguments: str) -> str:
    done = python(copy, copy.parent / "work", "-m", "labelwall.pipeline", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_command_knows_it(copy: Path) -> None:
    config = ("--config", "config.yaml")
    assert json.loads(run(copy, "plan", *config, "--json"))["epsilon"] <= 96.0
    run(copy, "run", *config, "--run_dir", "out", "--quiet")
    run(copy, "run", *config, "--run_dir", "sharded", "--quiet", "--scale.shards", "3")
    run(copy, "run", *config, "--run_dir", "served", "--quiet", "--isolate")
    for folder in ("out", "sharded", "served"):
        finding = json.loads(run(copy, "audit", f"{folder}/ledger.sqlite", "--json"))
        assert finding["consistent"]
        assert finding["charged"] == {"0/response": 24}
    sure = ("--trials", "2000", "--confidence", str(1 - 2.5e-8))  # of bounds that hold jointly
    found = run(copy, "audit", "out/ledger.sqlite", "--empirical", *sure, "--json")
    assert not any(finding["refuted"] for finding in json.loads(found))


def test_the_contract_holds(copy: Path) -> None:
    tests = ["tests/test_mechanism_contract.py", "-k", "nearest_record", "-p", "no:cacheprovider"]
    done = python(copy, copy, "-m", "pytest", "-q", *tests)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout or "[100%]" in done.stdout
