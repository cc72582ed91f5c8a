"""The curve over epsilon: what a table says, and that the documentation's picture is of it."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_runs_are_kept_by_method_and_epsilon(load, tmp_path):
    _, curve = load("figures", "epsilon_curve")
    table = tmp_path / "table.csv"
    table.write_text("method,epsilon,accuracy\na,0.1,90\na,0.1,92\na,1,95\nb,1,80\n")
    assert curve.points(table) == {"a": {0.1: [90.0, 92.0], 1.0: [95.0]}, "b": {1.0: [80.0]}}


def test_the_picture_in_the_documentation_is_the_tables(load, tmp_path):
    _, curve = load("figures", "epsilon_curve")
    drawn = tmp_path / "mnist_by_epsilon.svg"
    curve.draw(curve.points(curve.TABLE), drawn)
    kept = ROOT / "docs" / "figures" / drawn.name
    assert drawn.read_text() == kept.read_text()
