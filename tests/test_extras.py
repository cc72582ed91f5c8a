"""A plain installation labels; what needs an extra says in one line what to type."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.experiment import tiny
from tests.programs import REPOSITORY, environment

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
# Packages of an extra by the names that Python imports
IMPORTED = {
    "compare": ("opacus", "diffprivlib", "matplotlib"),
    "demo": ("mlxtend",),
    "medical": ("pydicom", "nibabel"),
    "postgresql": ("psycopg",),
    "scale": ("ray",),
    "service": ("fastapi", "uvicorn", "h11", "prometheus_client"),
    "tables": ("duckdb", "pyarrow"),
}
PLAIN = """
import importlib.metadata as installed, sys
missing = sys.argv.pop(1).split(",")
def distribution(name, found=installed.distribution):
    if name in missing:
        raise installed.PackageNotFoundError(name)
    return found(name)
installed.distribution = distribution
class Hidden:
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden)
from labelwall import pipeline
sys.exit(pipeline.main())
"""


def plainly(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """A command in a process that has no package of an extra."""
    missing = ",".join(name for names in IMPORTED.values() for name in names)
    command = [sys.executable, "-c", PLAIN, missing, *line.split()]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)


def test_a_run_needs_no_extra(tmp_path: Path) -> None:
    tiny.write(tmp_path)
    done = plainly(tmp_path, "run --config config.yaml --run_dir run")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize(
    ("extra", "line"),
    [
        ("compare", "compare --data data.npz --methods gnmax --out compared"),
        ("demo", "run --config mnist.yaml --run_dir run"),
        ("medical", "run --private scans/a --public scans/b --test scans/c"),
        (
            "postgresql",
            "run --config config.yaml --run_dir run --ledger postgresql://a@b/c?schema=d",
        ),
        ("scale", "run --config config.yaml --run_dir run --scale.shards 2 --scale.backend ray"),
        ("service", "serve --config config.yaml --custodian_dir custody"),
        ("tables", "run --private a.parquet --public b.parquet --test c.parquet"),
    ],
)
def test_a_missing_extra_is_one_line_before_anything_is_asked(
    tmp_path: Path, extra: str, line: str
) -> None:
    assert extra in PROJECT["optional-dependencies"]
    tiny.write(tmp_path)
    mnist = (REPOSITORY / "configs" / "quickstart.yaml").read_text()
    (tmp_path / "mnist.yaml").write_text(mnist)
    for name in ("a/x", "b/x", "c/x", "c/y"):
        (tmp_path / "scans" / name).mkdir(parents=True)
        (tmp_path / "scans" / name / "1.dcm").touch()
    for name in ("a.parquet", "b.parquet", "c.parquet"):
        (tmp_path / name).touch()
    done = plainly(tmp_path, line)
    assert done.returncode == 2, done.stderr
    assert f"pip install 'labelwall[{extra}]'" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("round_1"))
    assert not (tmp_path / "compared").exists()


def test_what_is_imported_is_declared() -> None:
    """Every package that the product imports is in pyproject.toml, by the name that PyPI has."""
    names = {"PIL": "pillow", "yaml": "pyyaml", "sklearn": "scikit-learn"}
    names |= {"lightning_fabric": "pytorch-lightning", "grpc": "grpcio"}
    undeclared = {"datasets", "transformers", "pandas"}  # whoever has their objects has these
    extras = PROJECT["optional-dependencies"].values()
    listed = [*PROJECT["dependencies"], *(text for extra in extras for text in extra)]
    declared = {re.split(r"[>=<\[]", text)[0].replace("-", "_") for text in listed}
    for room in ("wall", "teacher", "student", "experiment"):
        for path in (REPOSITORY / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                    found = [node.module]
                packages = {name.split(".")[0] for name in found} - sys.stdlib_module_names
                packages = {names.get(name, name).replace("-", "_") for name in packages}
                assert packages <= declared | undeclared, path
