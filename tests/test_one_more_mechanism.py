"""One more mechanism: a file, a line of the registry, entries for auditor, audits and candidates.

A copy of the repository gets tests/nearest_record; then every command and the contract's tests run.
"""

from __future__ import annotations

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
    place = "from .pate import"
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


def of_copy(copy: Path) -> dict[str, str]:
    """Environment variables of programs that import the copy."""
    return {**os.environ, "PYTHONPATH": str(copy.parent), "OMP_NUM_THREADS": "1"}


def run(copy: Path, *arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "labelwall.pipeline", *arguments]
    work, environment = copy.parent / "work", of_copy(copy)
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
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


def test_it_labels_rows_without_a_student_and_is_compared(copy: Path) -> None:
    work = copy.parent / "work"
    save = "import numpy as np; np.savez('q.npz', x=np.load('data.npz')['test_x'][:5])"
    subprocess.run([sys.executable, "-c", save], cwd=work, check=True)
    predict = ("predict", "--config", "config.yaml", "--custodian_dir", "other", "--quiet")
    assert run(copy, *predict, "--queries", "q.npz", "--out", "a.npz").startswith("5 of 5 answered")
    (work / "compare.yaml").write_text(
        "data: {source: arrays, path: data.npz}\nseeds: [0]\nthreads: 1\nworkers: 1\n"
        "student: {backbone: mlp, objective: supervised, steps: 5, batch_labelled: 8, "
        "batch_unlabelled: 8, doubtful_folds: 2, doubtful_steps: 2}\nmethods:\n- name: nearest\n"
        "  points:\n  - epsilon: 100.0\n"
        "    mechanism: {kind: nearest_record, epsilon: 4.0}\n    rounds: [{queries: 12}]\n"
    )
    assert "nearest" in run(copy, "compare", "--config", "compare.yaml", "--out", "compared")


def test_the_contract_holds(copy: Path) -> None:
    """In the copy, where its registration alone makes it a case."""
    tests = ["tests/test_mechanism_contract.py", "-k", "nearest_record", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *tests]
    environment = of_copy(copy)
    environment.pop("PYTEST_CURRENT_TEST", None)
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout or "[100%]" in done.stdout
