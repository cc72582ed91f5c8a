"""CVPR20's Figures 5 to 8, Theorem 10 and the Sparse Vector Technique: pictures and numbers.

    python benchmarks/figures.py                            # half a minute; writes docs/figures
    python benchmarks/figures.py --cifar10 data --download  # Figure 5, real votes, 2 minutes more

The data-dependent curve of Figure 5 is a DIAGNOSIS, NOT RELEASABLE for private rows
(benchmarks/diagnosed_screening.py). Here its votes are simulated
(figure_numbers.simulated_plurality), or those of CIFAR-10, which is public: 30,000 images as the
private rows, HOG, the 300 nearest of all (no sampling), on the first 8,192 public images.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import figure_numbers as numbers
import matplotlib
import numpy as np
from figure_numbers import DELTA, GAMMA, MAX_VOTES, PLURALITIES, QUERIES, SIGMA, THRESHOLD
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labelwall.teacher.accounting.conversion import round_up

INK = "#1b2733"
PALETTE = ("#1f6feb", "#c2570c", "#2a7f4f", "#8250df", "#a4133c")
DASHED, SOLID = (0, (5, 2)), "-"
STYLE = {
    "svg.hashsalt": "labelwall",  # element ids are random otherwise
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}


@dataclass(frozen=True)
class Grid:
    """How fine the curves are: points of an axis, and SVT distances (votes)."""

    points: int = 60
    distances: int = 35


@contextmanager
def picture(path: Path, *, panels: int = 1, legend_columns: int = 2) -> Iterator[list[Axes]]:
    """Axes with a legend above them, saved to ``path`` when the block ends.

    The same numbers give the same bytes.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.4), layout="constrained")
        axes = list(np.atleast_1d(figure.subplots(1, panels)))
        yield axes
        lines, labels = axes[0].get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside upper left", ncols=legend_columns, fontsize=9)
        figure.savefig(
            path, metadata={"Date": None} if path.suffix == ".svg" else {"Software": None}
        )


def draw_figure_5(folder: Path, grid: Grid, plurality: np.ndarray, votes_from: str) -> None:
    """Epsilon against queries by five analyses, printed values as crosses at the right end."""
    counts = np.unique(np.linspace(1, QUERIES, grid.points).astype(np.int64))
    found = numbers.figure_5(counts, plurality)
    styles = zip(
        found.items(),
        ("#2a7f4f", "#1f6feb", "#1f6feb", INK, "#a4133c"),
        (SOLID, SOLID, DASHED, DASHED, SOLID),
        strict=True,
    )
    setting = f"k={MAX_VOTES} T={THRESHOLD} sigma1={SIGMA:g}, delta={DELTA:g}"
    print(f"\nFigure 5: {QUERIES} screenings, {setting}, classic conversion")
    with picture(folder / "cvpr20_figure_5.svg") as (axes,):
        for (name, values), color, dash in styles:
            note = ", NOT RELEASABLE" if name == numbers.DATA_DEPENDENT else ""
            label = f"{name}{note}: {round_up(values[-1])}"
            axes.plot(counts, values, color=color, linestyle=dash, label=label)
            axes.plot(QUERIES, numbers.PRINTED[name], "x", color=color, markersize=7, clip_on=False)
            print(f"  {values[-1]:.4f}   printed {numbers.PRINTED[name]:5}   {name}{note}")
        print(
            f"  Data-dependent: {votes_from}, plurality {plurality.mean():.1f} on average. "
            f"{numbers.DATA_DEPENDENT_NOTE}"
        )
        axes.set_xlabel(f"screened queries (x: as printed in CVPR20; data-dependent: {votes_from})")
        axes.set(ylabel=f"epsilon at delta = {DELTA:g}")
        axes.set(xlim=(0, QUERIES), ylim=(0, None))


def draw_figure_6(folder: Path, grid: Grid) -> None:
    """Epsilon(alpha) by order and plurality as a share of the worst one's, and where that sits."""
    orders = np.unique(np.linspace(2, 200, grid.points).round())
    # [MAX_VOTES + 1, n_orders]
    tables = {gamma: numbers.terms_at(orders, gamma) for gamma in (1.0, GAMMA)}
    share = tables[1.0] / tables[1.0].max(axis=0)
    with picture(folder / "cvpr20_figure_6.png", legend_columns=3) as (axes,):
        mesh = axes.pcolormesh(
            orders, np.arange(MAX_VOTES + 1), share, cmap="Blues", vmin=0, vmax=1, shading="nearest"
        )
        axes.figure.colorbar(mesh, label="share of the worst plurality's epsilon(alpha)")
        axes.plot(orders, tables[1.0].argmax(axis=0), color="#ff9d4d", label="worst, no sampling")
        axes.plot(
            orders,
            tables[GAMMA].argmax(axis=0),
            color="#ff9d4d",
            linestyle=DASHED,
            label=f"worst, gamma={GAMMA}",
        )
        axes.axhline(THRESHOLD, color=INK, linewidth=0.9, linestyle=":", label=f"T = {THRESHOLD}")
        axes.set(xlabel="order alpha", ylabel="plurality (votes)", ylim=(0, MAX_VOTES))
    print("\nFigure 6: worst plurality of one screening by order (the paper: T below order 50)")
    for gamma, table in tables.items():
        shown = [
            (int(orders[i]), int(table[:, i].argmax()))
            for i in np.linspace(0, len(orders) - 1, 6).astype(int)
        ]
        print(
            f"  gamma={gamma:<5g}" + "  ".join(f"alpha {order}: {votes}" for order, votes in shown)
        )


def draw_figure_7(folder: Path, grid: Grid) -> None:
    """Epsilon(alpha) at five pluralities and their maximum, no sampling."""
    orders = np.unique(np.linspace(2, 200, grid.points).round())
    table = numbers.terms_at(orders, 1.0)
    with picture(folder / "cvpr20_figure_7.svg") as (axes,):
        for votes, color in zip(PLURALITIES, PALETTE, strict=True):
            axes.plot(orders, table[votes], color=color, label=f"plurality {votes}")
        axes.plot(
            orders, table.max(axis=0), color=INK, linestyle=DASHED, label="maximum over 0..300"
        )
        axes.set(
            xlabel="order alpha",
            ylabel="epsilon(alpha) of one screening",
            xlim=(0, 200),
            ylim=(0, None),
        )
    short = table.max(axis=0) / np.maximum(table[THRESHOLD], table[MAX_VOTES])
    first = orders[np.argmax(table[MAX_VOTES] > table[THRESHOLD])]
    print(f"\nFigure 7: k overtakes T at alpha = {first:g} (the paper: 80)")
    excess, order = 100 * (short.max() - 1), orders[short.argmax()]
    print(
        f"  the maximum over 0..k exceeds that of T and k by up to {excess:.1f}%, "
        f"at alpha {order:g}"
    )


def draw_figure_8(folder: Path, grid: Grid) -> None:
    """Epsilon of up to 8192 sampled screenings at five pluralities and at the maximum.

    The right panel shows shares of the maximum's epsilon.
    """
    counts = np.unique(np.geomspace(1, QUERIES, grid.points).astype(np.int64))
    rows = numbers.terms(GAMMA)
    named = {f"plurality {votes}": rows[votes] for votes in PLURALITIES} | {
        "maximum over 0..300": rows.max(axis=0)
    }
    spent = {name: numbers.epsilons(row, counts) for name, row in named.items()}
    with picture(folder / "cvpr20_figure_8.svg", panels=2, legend_columns=3) as (left, right):
        for (name, values), color in zip(spent.items(), (*PALETTE, INK), strict=True):
            dash = DASHED if name.startswith("maximum") else SOLID
            left.plot(counts, values, color=color, linestyle=dash, label=name)
            right.plot(counts, values / spent["maximum over 0..300"], color=color, linestyle=dash)
        left.set(
            xlabel="screened queries",
            ylabel=f"epsilon at delta = {DELTA:g}",
            xlim=(0, None),
            ylim=(0, None),
        )
        right.set(
            xlabel="screened queries",
            ylabel="share of the maximum's epsilon",
            xscale="log",
            ylim=(0, 1.05),
        )
    print(
        f"\nFigure 8: epsilon of 1, 10, 100, 1000 and {QUERIES} screenings at gamma={GAMMA}, "
        f"delta={DELTA:g}, classic conversion"
    )
    for name, row in named.items():
        shown = numbers.epsilons(row, np.array([1, 10, 100, 1000, QUERIES]))
        print(f"  {name:20}" + "  ".join(f"{epsilon:.4f}" for epsilon in shown))


def draw_theorem_10(folder: Path, grid: Grid) -> None:
    """Theorem 10's epsilon beside the exact cost, SVHN's setting, half of the queries answered."""
    setting = numbers.Setting()
    counts = np.unique(np.geomspace(100, 3e7, grid.points).astype(np.int64))
    bounds = [numbers.theorem_10(setting, int(m), int(m) // 2) for m in counts]
    exact = [numbers.exact_cost(setting, int(m), int(m) // 2) for m in counts]
    applies = np.array([bound.applies for bound in bounds])
    with picture(folder / "theorem_10.svg") as (axes,):
        values = np.array([bound.epsilon for bound in bounds])
        axes.plot(counts, np.where(applies, values, np.nan), color="#c2570c", label="Theorem 10")
        axes.plot(
            counts,
            np.where(applies, np.nan, values),
            color="#c2570c",
            linestyle=":",
            label="its formula, conditions not met",
        )
        axes.plot(counts, exact, color="#1f6feb", label="exact cost (tight certificate)")
        axes.set(
            xlabel="queries m, half of them answered",
            ylabel=f"epsilon at delta = {setting.delta:g}",
            xscale="log",
            yscale="log",
        )
    print("\nTheorem 10 beside the exact cost, SVHN (gamma .03, sigma1 200, sigma2 60, delta 1e-6)")
    for asked, answered in ((6000, 2939), (100_000, 50_000), (1_000_000, 500_000)):
        bound = numbers.theorem_10(setting, asked, answered)
        cost = numbers.exact_cost(setting, asked, answered)
        met = "met" if bound.applies else "not met"
        print(
            f"  {asked:>8} asked, {answered:>7} answered: {bound.epsilon:8.3f} (conditions {met}), "
            f"exact {round_up(cost)}"
        )


def draw_sparse_vector(folder: Path, grid: Grid) -> None:
    """Epsilon of 8192 queries by their distance from the threshold.

    Noisy Screening by three analyses, and SVT with the same noise.
    """
    distances = np.unique(np.linspace(0, 8 * SIGMA, grid.distances).astype(np.int64))
    found = numbers.screening_by_distance(distances)
    found["SVT"] = numbers.sparse_vector(distances)
    found[f"SVT, gamma={GAMMA}"] = numbers.sparse_vector(distances, gamma=GAMMA)
    looks = {"screening": ("#1f6feb", SOLID), f"screening, gamma={GAMMA}": ("#a4133c", SOLID)}
    looks |= {
        numbers.DATA_DEPENDENT: ("#1f6feb", DASHED),
        "SVT": ("#c2570c", SOLID),
        f"SVT, gamma={GAMMA}": ("#c2570c", DASHED),
    }
    print(
        f"\nNoisy Screening against SVT: {QUERIES} queries, noise of deviation {SIGMA:g} in every "
        f"comparison, delta={DELTA:g}"
    )
    with picture(folder / "sparse_vector.svg") as (axes,):
        for name, values in found.items():
            note = " (NOT RELEASABLE)" if name == numbers.DATA_DEPENDENT else ""
            axes.plot(
                distances / SIGMA,
                values,
                color=looks[name][0],
                linestyle=looks[name][1],
                label=name + note,
            )
            shown = [
                f"{epsilon:8.3f}"
                for epsilon in values[np.linspace(0, len(values) - 1, 5).astype(int)]
            ]
            print(f"  {name + note:45}" + " ".join(shown))
        axes.set(
            xlabel="distance of every query's plurality below T, in deviations of the noise",
            ylabel=f"epsilon at delta = {DELTA:g}",
        )
        axes.set(yscale="log", xlim=(0, 8))
    print(
        "  at distances (votes) "
        + ", ".join(str(d) for d in distances[np.linspace(0, len(distances) - 1, 5).astype(int)])
    )


def cifar10_plurality(root: str, download: bool) -> np.ndarray:
    """Plurality of the 300 nearest private images for 8192 public ones, CIFAR-10 by HOG.

    int64 [8192], from 30,000 private images.
    """
    from labelwall.teacher.features.embedder import Embedder
    from labelwall.teacher.records.sources import open_records
    from labelwall.teacher.search.cpu import ExactIndex
    from labelwall.wall.datasets.config import DataConfig
    from labelwall.wall.datasets.sources import describe, read_public
    from labelwall.wall.messages import ExtractorSpec

    config = DataConfig(source="cifar10", root=root, download=download)
    task = describe(config)
    records, public = open_records(config, task), read_public(config)
    embedder = Embedder(ExtractorSpec("hog", task.input_shape, task.num_classes))
    features, _ = embedder.embed(records.inputs)
    queries, _ = embedder.embed(public.inputs[:QUERIES])
    index = ExactIndex(features, records.ids)
    near = np.concatenate(
        [index.prefix(queries[start : start + 256], MAX_VOTES) for start in range(0, QUERIES, 256)]
    )
    votes = records.labels[near]  # [8192, 300]
    counts = np.stack([(votes == label).sum(axis=1) for label in range(task.num_classes)])
    return counts.max(axis=0).astype(np.int64)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).parents[1] / "docs" / "figures",
        help="folder of the pictures",
    )
    parser.add_argument(
        "--cifar10",
        metavar="ROOT",
        help="folder of CIFAR-10 (torchvision's layout, or image folders)",
    )
    parser.add_argument(
        "--download", action="store_true", help="fetch CIFAR-10 into ROOT where it is missing"
    )
    parser.add_argument("--points", type=int, default=60, help="points of a curve")
    parser.add_argument(
        "--distances", type=int, default=35, help="distances at which SVT is computed"
    )
    parser.add_argument("--only", choices=["5", *DRAWN], help="draw this one")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    grid = Grid(options.points, options.distances)
    if options.only in (None, "5"):
        if options.cifar10:
            plurality = cifar10_plurality(options.cifar10, options.download)
            votes_from = "votes of CIFAR-10 by HOG"
        else:
            plurality, votes_from = numbers.simulated_plurality(), "simulated votes"
        draw_figure_5(options.out, grid, plurality, votes_from)
    for name, draw in DRAWN.items():
        if options.only in (None, name):
            draw(options.out, grid)


DRAWN = {
    "6": draw_figure_6,
    "7": draw_figure_7,
    "8": draw_figure_8,
    "theorem_10": draw_theorem_10,
    "sparse_vector": draw_sparse_vector,
}


if __name__ == "__main__":
    main()
