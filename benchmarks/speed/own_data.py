"""Where the time of a run on one's own data goes: CPU seconds of user and system, by part.

    python benchmarks/speed/own_data.py vectors demo                   # of this tree
    python benchmarks/speed/own_data.py images --images CIFAR10.zip    # class folders of JPEG files
    python benchmarks/speed/own_data.py vectors --tree OTHER/labelwall # of another checkout

Each row is a command of the README in a process of its own; "again" is the same command once more,
"anew" one with another run folder. CPU seconds hardly depend on what else the machine does. The
limit is the network's products for all images at the measured rate of large products on one core.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import defaultdict
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
SPLITS = {"private": 6_000, "public": 1_500, "test": 1_000}
LITE2_FLOPS = 2 * 0.87e9 * (160 / 260) ** 2  # of an image at 160 pixels


def write_vectors(path: Path, seed: int = 0) -> None:
    """6,000 private vectors of 384 numbers in ten overlapping clouds, 1,500 public, 1,000 test."""
    rng = np.random.default_rng(seed)
    middles, arrays = rng.normal(size=(10, 384)), {}
    for name, count in SPLITS.items():
        labels = rng.integers(0, 10, count)
        arrays[f"{name}_x"] = (middles[labels] + 3 * rng.normal(size=(count, 384))).astype("f4")
        if name != "public":
            arrays[f"{name}_y"] = labels
    np.savez(path, **arrays)


def write_images(archive: Path, folder: Path) -> None:
    """The first images of an archive with a folder for each class, as README's folders."""
    with zipfile.ZipFile(archive) as stored:
        by_class = defaultdict(list)
        for name in sorted(stored.namelist()):
            if name.lower().endswith((".jpg", ".jpeg", ".png")):
                by_class[Path(name).parent.name].append(name)
        for split, count in SPLITS.items():
            for label, names in by_class.items():
                place = folder / split / ("" if split == "public" else label)
                place.mkdir(parents=True, exist_ok=True)
                for name in [names.pop() for _ in range(count // len(by_class))]:
                    target = f"{label}_{Path(name).name}" if split == "public" else Path(name).name
                    (place / target).write_bytes(stored.read(name))


def timed(name: str, tree: Path, *command: str) -> None:
    """Run a command of a tree and print a line of the table."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(tree.parent)}
    program = [sys.executable, "-m", "labelwall.pipeline", *command]
    ended = subprocess.run(program, env=environment, text=True, capture_output=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    lines = (ended.stdout if ended.returncode == 0 else ended.stderr).strip().splitlines()
    print(f"| {name} | {cpu:.1f} | {wall:.1f} | {' / '.join(lines[-2:])} |", flush=True)


def rate(size: int = 2048) -> float:
    """Operations a second in float32 products on one core: the best of five."""
    import torch

    torch.set_num_threads(1)
    x, seconds = torch.rand(size, size), []
    for _ in range(5):
        began = time.process_time()
        x @ x
        seconds.append(time.process_time() - began)
    return 2 * size**3 / min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", choices=["start", "vectors", "images", "demo"])
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout that is measured")
    parser.add_argument("--images", type=Path, help="zip file with a folder for each class")
    options = parser.parse_args()
    tree = options.tree.resolve()
    own = ["--timing"] if tree == ROOT else []  # an earlier one has no such option
    print("| command | CPU s | wall s | result |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        demo = ["--config", str(tree / "configs" / "quickstart.yaml")]
        if "start" in options.parts:
            timed("--help", tree, "--help")
            timed("plan", tree, "plan", *demo)
        if "demo" in options.parts:
            timed("demo", tree, "run", *demo, "--run_dir", str(place / "demo"), *own)
        if "vectors" in options.parts:
            write_vectors(place / "vectors.npz")
            command = ["run", "--data", str(place / "vectors.npz"), "--epsilon", "1", *own]
            for row, folder in (("vectors", "a"), ("again", "a"), ("anew", "b")):
                timed(row, tree, *command, "--run_dir", str(place / folder))
        if "images" in options.parts:
            write_images(options.images, place / "images")
            command = ["run", "--data", str(place / "images"), "--epsilon", "1", *own]
            for row, folder in (("images", "c"), ("again", "c"), ("anew", "d")):
                timed(row, tree, *command, "--run_dir", str(place / folder))
            least = sum(SPLITS.values()) * LITE2_FLOPS / rate()
            print(f"| limit: EfficientNet-Lite2's products of all images | {least:.1f} | | |")


if __name__ == "__main__":
    main()
