r"""Features of labelled images, cached in chunks so that an interrupted run resumes.

    python benchmarks/shared/image_features.py --cache FEATURES --images CIFAR10 --arrays ROWS
    python benchmarks/shared/image_features.py --cache FEATURES --published fashion_mnist \
        --root DATA --features hog

``--images`` is a folder {test,train}/CLASS/*.jpg. Writes ``{split}_{number}.npz`` with ``features``
float [n, d] before quantisation and ``labels`` int64 [n]; rows of folders are in the constant order
of their names, those of a published data set in their own order. ``read`` quantises them as the
teacher does. The networks have ImageNet's public weights. ``--arrays`` writes the rows as
the npz file of the data source `arrays`: train rows private, the first half of the test rows
public, the rest the test split.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from labelwall.student.asking.features import principal_axes
from labelwall.student.public_settings import IMAGENET
from labelwall.wall.datasets import folders, readers
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.datasets.image_labels import is_image
from labelwall.wall.datasets.sources import PUBLISHED, describe, read_public
from labelwall.wall.features.embedder import RAW_UNIT, Embedder, quantise
from labelwall.wall.labels import class_names, code_of
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.networks import efficientnet_lite

FEATURES = (*IMAGENET, "hog")
CHUNK = 1000  # images a file
SPLITS = ("test", "train")


@dataclass(frozen=True)
class Images:
    """A labelled data set.

    ``rows``: of each split. ``read(split, part)``: (uint8 [n, h, w, c], labels int64 [n]).
    """

    shape: tuple[int, ...]
    num_classes: int
    rows: dict[str, int]
    read: Callable[[str, slice], tuple[np.ndarray, np.ndarray]]


def in_folders(images: Path) -> Images:
    """32 x 32 colour images in one folder a class."""
    paths = {}
    for split in SPLITS:
        found = [path for path in folders.list_files(images / split) if is_image(path)]
        paths[split] = [found[row] for row in folders.constant_order(found)]
    names = class_names([path.split("/")[0] for path in paths[SPLITS[0]]], [])
    code = code_of(names)

    def read(split: str, part: slice) -> tuple[np.ndarray, np.ndarray]:
        labels = [code(path.split("/")[0]) for path in paths[split][part]]
        pixels = readers.read_images(images / split, paths[split][part], (32, 32), 3).pixels
        return pixels, np.array(labels, dtype=np.int64)

    rows = {split: len(found) for split, found in paths.items()}
    return Images((32, 32, 3), len(names), rows, read)


def of_published(source: str, root: Path) -> Images:
    """The private split as train, and the public one followed by the test split as test."""
    config = DataConfig(source, root=str(root))
    train, public, task = (
        PUBLISHED[source].private_rows(config),
        read_public(config),
        describe(config),
    )
    assert public.labels is not None
    splits = {
        "train": (train.inputs, train.labels),
        "test": (
            np.concatenate([public.inputs, public.test_inputs]),
            np.concatenate([public.labels, public.test_labels]),
        ),
    }

    def read(split: str, part: slice) -> tuple[np.ndarray, np.ndarray]:
        inputs, labels = splits[split]
        return inputs[part], labels[part]

    rows = {split: len(labels) for split, (_, labels) in splits.items()}
    return Images(task.input_shape, task.num_classes, rows, read)


def extract(images: Images, features: Callable[[np.ndarray], np.ndarray], cache: Path) -> None:
    """Compute the chunks that are not there yet."""
    cache.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        for start in range(0, images.rows[split], CHUNK):
            target = chunk_path(cache, split, start)
            if target.exists():
                continue
            began = time.perf_counter()
            pixels, labels = images.read(split, slice(start, start + CHUNK))
            unfinished = target.with_suffix(".part")
            with unfinished.open("wb") as file:
                np.savez(file, features=features(pixels), labels=labels)
            unfinished.rename(target)
            print(
                f"{target.name}: {len(labels) / (time.perf_counter() - began):.0f} images a second",
                flush=True,
            )


def chunk_path(cache: Path, split: str, start: int) -> Path:
    """File of the chunk that begins with row ``start`` of a split."""
    return cache / f"{split}_{start // CHUNK:03d}.npz"


@dataclass(frozen=True)
class Scaling:
    """How features become integers.

    ``center``, float [d], is subtracted; rows are projected on ``axes`` [d, k], if any, and scaled
    to length ``scale``.
    """

    center: np.ndarray = field(repr=False)
    scale: float
    axes: np.ndarray | None = field(default=None, repr=False)

    def applied(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(int8 [n, k], whether a row is finite) of float [n, d]."""
        return quantise(features, tuple(self.center.tolist()), self.scale, self.axes)


def public_scaling(cache: Path, rows: int, whiten: int = 0) -> Scaling:
    """The mean of the first ``rows`` PUBLIC test rows and ``whiten`` of their principal axes.

    No axes for 0.
    """
    parts = []
    for start in range(0, rows, CHUNK):
        with np.load(chunk_path(cache, "test", start)) as chunk:
            parts.append(chunk["features"][: rows - start].astype(np.float64))
    features = np.concatenate(parts)
    if whiten:
        center, axes = principal_axes(features, whiten)
        return Scaling(center, RAW_UNIT * float(np.sqrt(whiten)), axes.astype(np.float64))
    center = features.mean(axis=0).round(6)
    return Scaling(center, RAW_UNIT * float(np.sqrt(len(center))))


def read(
    cache: Path, split: str, scaling: Scaling, rows: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(int8 [n, d], labels int64 [n]) of the first ``rows`` rows of a split, quantised."""
    features, labels, found = [], [], 0
    while (path := chunk_path(cache, split, found)).exists() and (rows is None or found < rows):
        with np.load(path) as chunk:
            quantised, finite = scaling.applied(chunk["features"])
            if not finite.all():
                raise ValueError(f"{path.name}: a feature that is not finite")
            features.append(quantised)
            labels.append(chunk["labels"])
        found += len(quantised)
    if found < (rows or 1):
        raise FileNotFoundError(
            f"{cache}: {found} rows of {split}; run benchmarks/shared/image_features.py"
        )
    return np.concatenate(features)[:rows], np.concatenate(labels)[:rows]


def to_arrays(cache: Path, target: Path) -> None:
    """All rows for the source `arrays`: float32, of length sqrt(d) around the PUBLIC rows' mean."""
    chunks = {
        split: [np.load(path) for path in sorted(cache.glob(f"{split}_*.npz"))] for split in SPLITS
    }
    rows = {
        split: np.concatenate([chunk["features"] for chunk in found])
        for split, found in chunks.items()
    }
    labels = {
        split: np.concatenate([chunk["labels"] for chunk in found])
        for split, found in chunks.items()
    }
    half = len(rows["test"]) // 2
    center = rows["test"][:half].mean(axis=0)

    def scaled(x: np.ndarray) -> np.ndarray:
        moved = x - center
        unit = moved / np.linalg.norm(moved, axis=1, keepdims=True)
        return (unit * np.sqrt(x.shape[1])).astype(np.float32)

    public, test = scaled(rows["test"][:half]), scaled(rows["test"][half:])
    parts = {"private_x": scaled(rows["train"]), "private_y": labels["train"], "public_x": public}
    np.savez(
        target, public_y=labels["test"][:half], test_x=test, test_y=labels["test"][half:], **parts
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--images", type=Path, help="folder with test/CLASS/*.jpg and train/CLASS/*.jpg"
    )
    source.add_argument(
        "--published", choices=("mnist5k", "mnist", "fashion_mnist"), help="a published data set"
    )
    parser.add_argument(
        "--root",
        type=Path,
        default=Path("data"),
        help="folder of the published data set, fetched if it is not there",
    )
    parser.add_argument("--features", choices=FEATURES, default=FEATURES[0])
    parser.add_argument("--cache", type=Path, required=True, help="folder that keeps the features")
    parser.add_argument(
        "--arrays", type=Path, help="npz file to write for the data source `arrays`"
    )
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    images = (
        in_folders(options.images)
        if options.images
        else of_published(options.published, options.root)
    )
    spec = ExtractorSpec("hog", images.shape, images.num_classes)
    if options.features != "hog":
        spec = efficientnet_lite(options.features, images.shape, images.num_classes)
    extract(images, Embedder(spec, workers=options.threads).features, options.cache)
    if options.arrays:
        to_arrays(options.cache, options.arrays)


if __name__ == "__main__":
    main()
