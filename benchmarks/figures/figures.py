"""How the documentation's pictures look, and CVPR20's Figure 5.

    python benchmarks/figures/figures.py                            # simulated votes
    python benchmarks/figures/figures.py --cifar10 data --download  # real votes, as in docs/figures

The data-dependent curve of Figure 5 is NOT RELEASABLE for private rows. Here its votes are
simulated (figure_numbers.simulated_plurality), or those of CIFAR-10, which is public: 30,000 images
as the private rows, HOG, the 300 nearest of all (no sampling), on the first 8,192 public images.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labelwall.benchmarks.figures import figure_numbers as numbers
from labelwall.benchmarks.figures.figure_numbers import DELTA, MAX_VOTES, QUERIES, SIGMA, THRESHOLD
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


def draw_figure_5(folder: Path, points: int, plurality: np.ndarray, votes_from: str) -> None:
    """Epsilon against queries by five analyses, printed values as crosses at the right end."""
    counts = np.unique(np.linspace(1, QUERIES, points).astype(np.int64))
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


def cifar10_plurality(root: str, download: bool) -> np.ndarray:
    """Plurality of the 300 nearest private images for 8192 public ones, CIFAR-10 by HOG.

    int64 [8192], from 30,000 private images.
    """
    from labelwall.teacher.records.private_records import open_records
    from labelwall.teacher.search.cpu import ExactIndex
    from labelwall.wall.datasets.data_config import DataConfig
    from labelwall.wall.datasets.sources import describe, read_public
    from labelwall.wall.features.embedder import Embedder
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
    figures = Path(__file__).parents[2] / "docs" / "figures"
    parser.add_argument("--out", type=Path, default=figures, help="folder of the picture")
    parser.add_argument(
        "--cifar10", metavar="ROOT", help="folder of CIFAR-10, torchvision's layout"
    )
    parser.add_argument(
        "--download", action="store_true", help="fetch CIFAR-10 into ROOT where it is missing"
    )
    parser.add_argument("--points", type=int, default=60, help="points of a curve")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    plurality, votes_from = numbers.simulated_plurality(), "simulated votes"
    if options.cifar10:
        plurality = cifar10_plurality(options.cifar10, options.download)
        votes_from = "votes of CIFAR-10 by HOG"
    draw_figure_5(options.out, options.points, plurality, votes_from)
    short = 100 * numbers.shortfall()
    print(f"  The worst plurality costs up to {short:.1f}% more than T and k (the paper: no more).")


if __name__ == "__main__":
    main()
