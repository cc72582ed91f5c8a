"""Public-weight features of a folder of labelled images, kept in chunks so that an interrupted run goes on where it stopped.

    python benchmarks/image_features.py --images CIFAR10 --cache features/       # CIFAR10/{test,train}/CLASS/*.jpg
    python benchmarks/image_features.py --images CIFAR10 --cache features/ --arrays cifar10_features.npz

Writes ``{split}_{number}.npz`` with ``features`` float32 [n, d] before quantisation and ``labels`` int64 [n]; rows are in the
constant order of their names. ``read`` quantises them as the teacher does. ``--arrays`` writes them as the npz file of the data
source `arrays`: train rows private, the first half of the test rows public, the rest the test split.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from teacher.features import quantise
from teacher.network import FixedShapeNetwork
from wall import readers
from wall.messages import ExtractorSpec
from wall.pretrained import efficientnet_lite0

CHUNK = 1000  # images a file
SPLITS = ("test", "train")


def extract(images: Path, cache: Path, batch_size: int) -> None:
    """Compute the chunks that are not there yet."""
    names = readers.class_folders(images / SPLITS[0])
    spec = efficientnet_lite0((32, 32, 3), len(names))
    network = FixedShapeNetwork(spec, batch_size)
    cache.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        root = images / split
        paths = [path for path in readers.list_files(root) if readers.is_image(path)]
        paths = [paths[row] for row in readers.constant_order(paths)]
        for start in range(0, len(paths), CHUNK):
            target, part = chunk_path(cache, split, start), paths[start : start + CHUNK]
            if target.exists():
                continue
            began, pixels = time.perf_counter(), readers.read_images(root, part, 32, 3).pixels
            if split == SPLITS[0] and start == 0 and not network.slot_independent(pixels[:8]):
                print("a slot of the batch matters on this machine: one image at a time")
                network = network.one_at_a_time()
            labels = np.array([readers.class_of(path, names) for path in part], dtype=np.int64)
            unfinished = target.with_suffix(".part")
            with unfinished.open("wb") as file:
                np.savez(file, features=network.features(pixels), labels=labels)
            unfinished.rename(target)
            print(f"{target.name}: {len(part) / (time.perf_counter() - began):.0f} images a second", flush=True)


def chunk_path(cache: Path, split: str, start: int) -> Path:
    """File of the chunk that begins with row ``start`` of a split."""
    return cache / f"{split}_{start // CHUNK:03d}.npz"


def read(cache: Path, split: str, spec: ExtractorSpec, rows: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(int8 [n, d], labels int64 [n]) of the first ``rows`` rows of a split, quantised by the spec's centre and scale."""
    features, labels, found = [], [], 0
    while (path := chunk_path(cache, split, found)).exists() and (rows is None or found < rows):
        with np.load(path) as chunk:
            quantised, finite = quantise(chunk["features"], spec.center, spec.scale)
            if not finite.all():
                raise ValueError(f"{path.name}: a feature that is not finite")
            features.append(quantised)
            labels.append(chunk["labels"])
        found += len(quantised)
    if found < (rows or 1):
        raise FileNotFoundError(f"{cache}: {found} rows of {split}; run benchmarks/image_features.py")
    return np.concatenate(features)[:rows], np.concatenate(labels)[:rows]


def mean(cache: Path, split: str, rows: int) -> np.ndarray:
    """float64 [d]: mean feature of the first ``rows`` rows of a PUBLIC split, before quantisation."""
    total: np.ndarray | float = 0.0
    for start in range(0, rows, CHUNK):
        with np.load(chunk_path(cache, split, start)) as chunk:
            total = total + chunk["features"][: rows - start].astype(np.float64).sum(axis=0)
    return np.asarray(total) / rows


def to_arrays(cache: Path, target: Path) -> None:
    """All rows for the source `arrays`: less the mean of the PUBLIC rows, each of length sqrt(d), float32."""
    chunks = {split: [np.load(path) for path in sorted(cache.glob(f"{split}_*.npz"))] for split in SPLITS}
    rows = {split: np.concatenate([chunk["features"] for chunk in found]) for split, found in chunks.items()}
    labels = {split: np.concatenate([chunk["labels"] for chunk in found]) for split, found in chunks.items()}
    half = len(rows["test"]) // 2
    center = rows["test"][:half].mean(axis=0)

    def scaled(x: np.ndarray) -> np.ndarray:
        moved = x - center
        return (moved / np.linalg.norm(moved, axis=1, keepdims=True) * np.sqrt(x.shape[1])).astype(np.float32)

    public, test = scaled(rows["test"][:half]), scaled(rows["test"][half:])
    parts = {"private_x": scaled(rows["train"]), "private_y": labels["train"], "public_x": public}
    np.savez(target, public_y=labels["test"][:half], test_x=test, test_y=labels["test"][half:], **parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="folder with test/CLASS/*.jpg and train/CLASS/*.jpg")
    parser.add_argument("--cache", type=Path, required=True, help="folder that keeps the features")
    parser.add_argument("--arrays", type=Path, help="npz file to write for the data source `arrays`")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    extract(options.images, options.cache, options.batch)
    if options.arrays:
        to_arrays(options.cache, options.arrays)


if __name__ == "__main__":
    main()
