"""One more mechanism: with that of docs/extend a copy of the repository keeps the contract."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import example
from tests.programs import REPOSITORY

LEFT_OUT = shutil.ignore_patterns(".*", "build", "runs", "__pycache__", "*.egg-info", "figures")
IMPORT = "from .nearest_record import NearestRecord\n"
ENTRIES = {
    "teacher/ledger/auditor/mechanisms.py": """
KINDS["nearest_record"] = Known(
    EPSILON,
    lambda f: [
        PricedRelease("response", "pure", {"epsilon": f["epsilon"]}, released_values.label())
    ],
)
""",
    "teacher/audits/cases.py": """
from .nearest_record import answers

ATTACKS["nearest_record"] = answers, _with(epsilon=2.0)
""",
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository with one more mechanism."""
    root = tmp_path_factory.mktemp("copy") / "labelwall"
    shutil.copytree(REPOSITORY, root, ignore=LEFT_OUT)
    mechanism = example("mechanism", most=40)
    (root / "teacher" / "mechanisms" / "nearest_record.py").write_text(mechanism)
    audit = REPOSITORY / "tests" / "nearest_record" / "audit.py"
    shutil.copy(audit, root / "teacher" / "audits" / "nearest_record.py")
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
    return root


def test_the_contract_holds(copy: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(copy.parent), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_CURRENT_TEST", None)
    command = [sys.executable, "-m", "pytest", "-q", "tests/test_mechanism_contract.py"]
    command += ["-k", "nearest_record", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout or "[100%]" in done.stdout
