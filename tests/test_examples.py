"""The examples in the product's docstrings run, and give what stands below them."""

import doctest
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("teacher", "student", "wall", "experiment")
FILES = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in [*FILES, *ROOT.glob("*.py")]
    if ">>> " in path.read_text()
)
LONG = "experiment.api"  # it fits a model
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors in which each of three classes shifts a coordinate of its own."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(n) % 3)
    return (rng.normal(size=(n, 5)) + 4 * np.eye(3, 5)[labels]).astype(np.float32), labels


def failures(module: Any) -> int:
    """How many examples of a module fail, where X, y, U, Xt and yt are a user's rows."""
    (X, y), (U, _), (Xt, yt) = rows(600), rows(120), rows(60)
    names = {"X": X, "y": y, "U": U, "Xt": Xt, "yt": yt}
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    for test in doctest.DocTestFinder().find(module, extraglobs=names):
        runner.run(test)
    assert runner.tries
    return runner.failures


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == LONG else ()) for name in MODULES],
)
def test_the_examples_of_a_module_run(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert failures(import_module(f"labelwall.{name}")) == 0


def test_another_output_is_a_failure() -> None:
    class Wrong:
        """An example.

        >>> 1 + 1
        3
        """

        __module__ = __name__

    assert failures(Wrong) == 1
