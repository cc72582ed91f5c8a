"""The command line has three names, which do the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
SCRIPT = Path(sys.executable).with_name("labelwall")


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "pipeline.py"],
        [sys.executable, "-m", "labelwall"],
        [str(SCRIPT)],
    ],
    ids=["python pipeline.py", "python -m labelwall", "labelwall"],
)
def test_each_name_of_the_command_plans_and_refuses(command: list[str]) -> None:
    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *args], cwd=REPOSITORY, env=os.environ, capture_output=True, text=True
        )

    planned = run("plan", "--config", "configs/mnist_tiny_budgets.yaml")
    assert planned.returncode == 0, planned.stderr
    assert "epsilon" in planned.stdout
    refused = run("nonsense")
    assert refused.returncode == 2
    assert refused.stderr.startswith("labelwall: unknown command 'nonsense'")
    assert refused.stderr.count("\n") == 1
