"""The numbers of CVPR20's tables and Figure 5: against what is printed, and exact divergences."""

import re
from pathlib import Path

import numpy as np
import pytest

from labelwall.benchmarks.figures import figure_numbers as numbers
from labelwall.benchmarks.figures import figures
from labelwall.benchmarks.figures import pate_numbers as pate
from labelwall.teacher.accounting.accountant import certificates
from labelwall.teacher.accounting.conversion import round_up
from labelwall.teacher.accounting.curves import screening_rdp
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.mechanisms.votes import PrivateKnn

ROOT = Path(__file__).parents[2]


def test_figure_5_is_within_one_percent_of_what_is_printed():
    """All but the data-dependent curve, whose votes were never published."""
    at_threshold = np.full(8192, 210)
    curves = numbers.figure_5(np.array([8192]), at_threshold)
    found, printed = {n: float(y[-1]) for n, y in curves.items()}, dict(numbers.PRINTED)
    dependent, _ = (each.pop(numbers.DATA_DEPENDENT) for each in (found, printed))
    assert found == pytest.approx(printed, rel=0.01)
    assert dependent == pytest.approx(found["screening, no sampling"], rel=1e-3)
    assert dependent <= found["screening, no sampling"] * (1 + 1e-12)


def test_the_command_draws_its_figure_and_prints_its_numbers(run, tmp_path):
    printed = run(figures, "--points 3 --out {0}", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["cvpr20_figure_5.svg"]
    assert "up to 9.3% more than T and k" in printed


def test_committed_figures_are_small_and_each_stands_on_a_page():
    figures = list((ROOT / "docs" / "figures").iterdir())
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    assert [path.name for path in figures if f"figures/{path.name}" not in pages] == []
    assert all(path.stat().st_size < 150_000 for path in figures)


def _row(first_cell, name="privacy"):
    """Cells of the one table row of a page that starts so."""
    lines = (ROOT / "docs" / f"{name}.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith(f"| {first_cell} |")]
    assert len(rows) == 1, first_cell
    return [cell.strip() for cell in rows[0].strip("|").split("|")][1:]


@pytest.mark.parametrize("gamma", [0.25, 1.0])
def test_the_page_prints_the_screening_curve_rounded_up(gamma):
    orders = np.array([2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
    curve = screening_rdp(orders, max_votes=300, threshold=210, sigma=85.0, sample_rate=gamma)
    (printed,) = _row(f"screening k=300 T=210 sigma1=85 gamma={gamma:g}")
    values = np.array([float(value) for value in printed.split()])
    assert (values >= curve).all()
    np.testing.assert_allclose(values, curve, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [
        "MNIST k=300 T=180 sigma1=75 sigma2=25 gamma=.15, 1000/735, delta=1e-5",
        "SVHN k=800 T=480 sigma1=200 sigma2=60 gamma=.03, 6000/2939, delta=1e-6",
        "CIFAR-10 k=300 T=210 sigma1=85 sigma2=20 gamma=.2, 18000/3877, delta=1e-5",
    ],
)
def test_the_page_prints_every_certificate_of_table_1(row):
    k, threshold, screen, vote, gamma, delta = map(float, re.findall(r"=([\d.e-]+)", row))
    noise = {"sigma_screen": screen, "sigma_vote": vote, "sample_rate": gamma}
    mechanism = PrivateKnn(k=int(k), threshold=int(threshold), **noise)
    asked, answered = map(int, re.search(r"(\d+)/(\d+)", row).groups())
    releases = mechanism.releases(asked, answered)
    found = certificates(Plan(10.0, delta, (Slot({}, releases),)))
    printed = [float(cell) for cell in _row(row, "results")[1:]]
    assert printed == [round_up(found[name].epsilon) for name in ("tight", "pld")]


def test_table_3_follows_from_one_constant_that_is_not_theorem_13s():
    """32 where the theorem has tau = 10: all four rows to half a percent."""
    for row in pate.TABLE_3:
        assert pate.implied(row) == pytest.approx(32, rel=0.007)
        by_32, by_tau = (
            pate.classic(tau * row.queries / row.sigma**2, row.delta) for tau in (32, pate.TAU)
        )
        assert by_32 == pytest.approx(row.printed, rel=0.005)
        assert by_tau < 0.6 * row.printed


@pytest.mark.slow
def test_the_command_prints_what_the_page_says(run):
    lines = run(pate, "").splitlines()
    assert len([line for line in lines if line.startswith(("| CelebA", "| Market"))]) == 4
    certified = [line for line in lines if line.startswith(("| GNMAX, ", "| Private-kNN, "))]
    assert len(certified) == 8
    for line in lines:
        if "labels" in line:
            name, value = line.rsplit(": ", 1)
            assert _row(name, "results")[1] == value
