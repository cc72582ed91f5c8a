"""The papers' PATE epsilons, recomputed.

Closed forms against the grid of orders, and every number the page prints.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from labelwall.teacher.accounting.conversion import epsilon_from_rdp
from labelwall.teacher.accounting.curves import ORDERS, gaussian_rdp

ROOT = Path(__file__).parents[2]


@pytest.fixture
def numbers(load):
    return load("pate_numbers")[0]


def test_theorem_13_is_the_gaussian_mechanism_at_the_sensitivity_of_a_change_of_two_vote_vectors(
    numbers,
):
    for row in numbers.TABLE_3:
        one = gaussian_rdp(ORDERS, sigma=row.sigma, sensitivity=20**0.5, sample_rate=1.0)
        curve = row.queries * one
        on_the_grid = epsilon_from_rdp(ORDERS, curve, row.delta, "classic")[0]
        exact = numbers.classic(numbers.TAU * row.queries / row.sigma**2, row.delta)
        assert exact <= on_the_grid * (1 + 1e-9)
        assert on_the_grid == pytest.approx(exact, rel=0.01)


def test_table_3_follows_from_one_constant_that_is_not_theorem_13s(numbers):
    """32 where the theorem has tau = 10: all four rows to half a percent."""
    for row in numbers.TABLE_3:
        assert numbers.implied(row) == pytest.approx(32, rel=0.007)
        by_32, by_tau = (
            numbers.classic(tau * row.queries / row.sigma**2, row.delta)
            for tau in (32, numbers.TAU)
        )
        assert by_32 == pytest.approx(row.printed, rel=0.005)
        assert by_tau < 0.6 * row.printed


def test_the_command_prints_what_the_page_says():
    command = [sys.executable, str(ROOT / "benchmarks" / "pate_numbers.py")]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    page = (ROOT / "docs" / "results.md").read_text()
    lines = shown.splitlines()
    assert len([line for line in lines if line.startswith(("| CelebA", "| Market"))]) == 4
    certified = [line for line in lines if line.startswith(("| GNMAX, ", "| Private-kNN, "))]
    assert len(certified) == 8
    for line in shown.splitlines():
        if "labels" in line:
            name, value = line.rsplit(": ", 1)
            assert f"| {name} | {value} |" in page
