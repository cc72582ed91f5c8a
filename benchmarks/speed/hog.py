"""CPU milliseconds per 1,000 images of our histograms of gradients and scikit-image's, on a thread.

    python benchmarks/speed/hog.py --root ROOT    # MNIST and Fashion-MNIST in torchvision's layout
    python benchmarks/speed/hog.py                # noise alone

The two alternate, ``--rounds`` times, on other images each time; medians. Also counts the entries
of the float64 features that differ in any bit.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from skimage.feature import hog

from labelwall.wall.hog import BLOCK, ORIENTATIONS, cell_size, hog_features


def by_scikit_image(images: np.ndarray) -> np.ndarray:
    """float64 [n, d] of uint8 [n, height, width, channels]."""
    options = {
        "orientations": ORIENTATIONS,
        "pixels_per_cell": cell_size(*images.shape[1:3]),
        "cells_per_block": (BLOCK, BLOCK),
        "channel_axis": None if images.shape[3] == 1 else -1,
    }
    images = images[..., 0] if images.shape[3] == 1 else images
    return np.array([hog(image, **options) for image in images])


def sets(root: Path | None) -> dict[str, np.ndarray]:
    """Images by the name of their set, uint8 [n, height, width, channels]."""
    rng = np.random.default_rng(0)
    noise = {
        "noise, 28 x 28": rng.integers(0, 256, (10_000, 28, 28, 1), dtype=np.uint8),
        "noise, 32 x 32, colour": rng.integers(0, 256, (10_000, 32, 32, 3), dtype=np.uint8),
    }
    if root is None:
        return noise
    from torchvision.datasets import MNIST, FashionMNIST

    of_root = {
        kind.__name__: kind(root, train=True).data.numpy()[..., None]
        for kind in (MNIST, FashionMNIST)
    }
    return {**of_root, **noise}


def measured(images: np.ndarray, count: int, rounds: int) -> tuple[float, float, int]:
    """(ours, scikit-image's) milliseconds per 1,000 images, and the entries that differ."""

    def clocked(features: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, float]:
        start = time.process_time()
        return features(part), (time.process_time() - start) * 1e6 / count

    hog_features(images[:1])  # the table of gradients is made before the clock starts
    taken, differ = [], 0
    for number in range(rounds):
        part = images[np.arange(number * count, (number + 1) * count) % len(images)]
        (ours, own), (reference, other) = (
            clocked(hog_features),
            clocked(by_scikit_image),
        )
        taken.append((own, other))
        differ += int((ours.view(np.int64) != reference.view(np.int64)).sum())
    own, other = np.median(taken, axis=0)
    return float(own), float(other), differ


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, help="folder of the published data sets")
    parser.add_argument("--images", type=int, default=1000, help="images a round, a count")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print("| images | ours, ms | scikit-image, ms | ratio | entries that differ |")
    print("|---|---|---|---|---|")
    for name, images in sets(options.root).items():
        own, other, differ = measured(images, options.images, options.rounds)
        print(f"| {name} | {own:.1f} | {other:.0f} | {other / own:.1f} | {differ} |")


if __name__ == "__main__":
    main()
