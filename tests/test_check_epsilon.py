"""`docs/check_epsilon.py`, which shares no line with the package, finds every plan's epsilon."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from labelwall.experiment.config.settings import load_config
from labelwall.experiment.plan.show import describe_plan

ROOT = Path(__file__).parents[1]
CONFIGS = [path for path in sorted(ROOT.glob("configs/*.yaml")) if "compare_" not in path.name]
CHEAP = ("quickstart", "mnist_reverse_knn", "own_values", "fashion_mnist_attributes")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=() if path.stem in CHEAP else pytest.mark.slow)
        for path in CONFIGS
    ],
)
def test_the_script_finds_the_same_epsilon(path: Path) -> None:
    shown = describe_plan(load_config(path))
    done = subprocess.run(
        [sys.executable, ROOT / "docs/check_epsilon.py"],
        input=json.dumps(shown),
        capture_output=True,
        text=True,
        check=True,
    )
    found = float(done.stdout)
    assert done.stderr == ""
    # A median's curve is above its supremum by about 0.2%, and printed epsilons are rounded up.
    assert found - 0.0002 <= shown["epsilon"] <= 1.0025 * found + 0.001


def test_the_script_is_short_and_needs_numpy_and_scipy_alone() -> None:
    lines = (ROOT / "docs/check_epsilon.py").read_text().splitlines()
    imported = {
        line.split()[1].split(".")[0] for line in lines if line.startswith(("import", "from"))
    }
    assert len(lines) <= 150
    assert imported == {"json", "math", "sys", "numpy", "scipy"}
