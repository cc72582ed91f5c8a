r"""Photographs in folders: README's command with `--refine`, on several splits of one archive.

    python benchmarks/accuracy/refined.py --images CIFAR10.zip --scratch FOLDER
    python benchmarks/accuracy/refined.py --images CIFAR10.zip --scratch FOLDER --seeds 50 \
        --private 50000 --public 5000 --epsilons 1

The archive has a folder of images for each class. A split is a random order of them all, of which
the first are private, the next public (without labels), the next test images. Folders and runs stay
in the scratch folder. A run that is there and finished is not repeated, and a killed one goes on.
`minutes` are those of the processor, of all runs that this command made.
"""

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

from labelwall.benchmarks.shared.record import add_record, percent, record
from labelwall.experiment.run.run_folder import RunFolder

TEST = 2_000
IMAGES = (".jpg", ".jpeg", ".png")
COLUMNS = ("private", "public", "epsilon", "% right", "least", "most", "round kept", "splits")


def write_folders(archive: Path, folder: Path, seed: int, private: int, public: int) -> None:
    """A split of the archive's images as README's folders; public ones lie in one folder."""
    if (folder / "test").exists():
        return
    with zipfile.ZipFile(archive) as stored:
        names = sorted(name for name in stored.namelist() if name.lower().endswith(IMAGES))
        random.Random(seed).shuffle(names)
        ends = [0, private, private + public, private + public + TEST]
        for number, part in enumerate(("private", "public", "test")):
            for name in names[ends[number] : ends[number + 1]]:
                path = PurePosixPath(name)
                label, file = path.parent.name, path.name
                place = folder / part / ("" if part == "public" else label)
                place.mkdir(parents=True, exist_ok=True)
                target = f"{label}_{file}" if part == "public" else file
                (place / target).write_bytes(stored.read(name))


def run(folder: Path, epsilon: float) -> tuple[float, int]:
    """(share of right test images, the round that is kept) of one run."""
    made = RunFolder(folder / "runs" / f"r{epsilon:g}")
    words = ["--private", "private", "--public", "public", "--test", "test", "--refine"]
    words += ["--epsilon", f"{epsilon:g}", "--seed", "0", "--run_dir", f"runs/r{epsilon:g}"]
    words += ["--custodian_dir", f"cust/r{epsilon:g}", "--quiet"]
    command = [sys.executable, "-m", "labelwall.pipeline", "run", *words]
    if made.finished() is None:
        subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    summary = made.finished()
    assert summary is not None
    assert summary.test_accuracy is not None
    return summary.test_accuracy, summary.best_round


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=Path, required=True, help="zip file, a folder a class")
    parser.add_argument("--scratch", type=Path, required=True, help="folder for images and runs")
    parser.add_argument("--private", type=int, default=6_000, help="a number of images")
    parser.add_argument("--public", type=int, default=1_500, help="a number of images")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.25, 1.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[61, 62, 63], help="of the splits")
    add_record(parser)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = []
    for epsilon in options.epsilons:
        shares, rounds = [], []
        for seed in options.seeds:
            folder = options.scratch / f"{options.private}_{seed}"
            write_folders(options.images, folder, seed, options.private, options.public)
            share, kept = run(folder, epsilon)
            shares.append(share)
            rounds.append(kept)
            print(f"split {seed}, epsilon {epsilon:g}: {share:.2%}, round {kept} kept", flush=True)
        found = [
            percent([share]) for share in (statistics.median(shares), min(shares), max(shares))
        ]
        sizes = [options.private, options.public, epsilon]
        rows.append([*sizes, *found, round(statistics.mean(rounds), 1), len(shares)])
    for row in (COLUMNS, ["---"] * len(COLUMNS), *rows):
        print("|", " | ".join(map(str, row)), "|")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"minutes: {(used.ru_utime + used.ru_stime) / 60:.1f}")
    if options.record:
        record("refined", COLUMNS, rows, keys=3, seeds=options.seeds)


if __name__ == "__main__":
    main()
