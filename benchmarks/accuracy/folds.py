r"""One table and its plot from several comparisons of the same methods, e.g. folds of a data set.

    for fold in 0 1 2 3 4; do
        python benchmarks/accuracy/radius.py --export banana_$fold.npz --fold $fold
        labelwall compare --config configs/compare_banana.yaml --data.path banana_$fold.npz \
            --out FOLDER/$fold
    done
    python benchmarks/accuracy/folds.py FOLDER/? --out FOLDER

Medians and ranges are over the folds and seeds of all of them.
"""

import argparse
import json
from pathlib import Path

from labelwall.experiment.compare.table import plot, render, summarise


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "comparisons", nargs="+", type=Path, help="folders that `labelwall compare` wrote"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the plot")
    options = parser.parse_args()
    cells = [
        cell
        for folder in options.comparisons
        for cell in json.loads((folder / "comparison.json").read_text())["cells"]
    ]
    rows = summarise(cells)
    print(render(rows))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "accuracy_by_epsilon.svg").write_bytes(plot(rows))


if __name__ == "__main__":
    main()
