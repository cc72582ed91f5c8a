"""The student's accuracy on MNIST by epsilon: a picture of results/mnist_by_epsilon.json.

python benchmarks/figures/epsilon_curve.py --out docs/figures/mnist_by_epsilon.svg

A row of the table is a whole run by the command that stands beside it.
"""

import argparse
import json
import statistics
from pathlib import Path

from labelwall.benchmarks.figures.figures import DASHED, PALETTE, SOLID, picture
from labelwall.benchmarks.shared.record import RESULTS

TABLE = RESULTS / "mnist_by_epsilon.json"
Points = dict[str, dict[float, list[float]]]  # method: epsilon: accuracy of each run, percent
MARKERS = ("o", "s", "^", "D", "v")


def points(table: Path) -> Points:
    """The runs of each method, by epsilon, in the table's order."""
    found: Points = {}
    for run in json.loads(table.read_text())["runs"]:
        for method, epsilon, accuracy in run["rows"]:
            found.setdefault(method, {}).setdefault(epsilon, []).append(accuracy)
    return found


def draw(found: Points, path: Path) -> None:
    """Medians, with the range of the runs as a bar."""
    with picture(path) as (axes,):
        for (method, by), color, marker in zip(found.items(), PALETTE, MARKERS, strict=False):
            medians = [statistics.median(runs) for runs in by.values()]
            below = [m - min(runs) for m, runs in zip(medians, by.values(), strict=True)]
            above = [max(runs) - m for m, runs in zip(medians, by.values(), strict=True)]
            axes.errorbar(
                list(by), medians, yerr=(below, above), color=color, label=method, marker=marker,
                linestyle=SOLID if len(by) > 1 else DASHED, capsize=3,
            )  # fmt: skip
        axes.set(xscale="log", xlabel="epsilon at delta = 1e-05", ylabel="test images right (%)")
        ticks = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    draw(points(options.table), options.out)


if __name__ == "__main__":
    main()
