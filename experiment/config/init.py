"""A configuration for one's own image folders, written from PUBLIC facts alone: the private folder is not opened."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from PIL import Image

from labelwall.wall.datasets.readers import (
    FORMATS,
    class_folders,
    constant_order,
    is_image,
    list_files,
    require_folder,
)
from labelwall.wall.errors import InvalidInput

SAMPLE = 1_000  # public images looked at
SMALLEST, LARGEST = (
    16,
    96,
)  # bounds of the suggested image side, pixels: networks pool three times; two cores have limits
GREY_MODES = {"1", "L", "LA", "I", "I;16", "I;16B", "F"}
ANSWERED_SHARE = 0.735  # CVPR20 Table 1, MNIST: 735 answers to 1,000 queries
MOST_QUERIES = 500  # a round; with the caps below the price stays under 0.96 at delta 1e-5


@dataclass(frozen=True)
class Findings:
    """What the public folders say: class names, image side in pixels, channels, number of public images."""

    classes: tuple[str, ...]
    image_size: int
    channels: int
    public_images: int


def write_config(
    private: Path, public: Path, test: Path, out: Path, *, overwrite: bool = False
) -> Findings:
    """Write a commented YAML configuration for image folders to ``out``; returns what was found.

    ``private``: only its name enters the file; it may lie on another machine. ``public``, ``test``: folders that are listed,
    ``test`` with one folder a class; sizes and colours are those of up to 1,000 public images.

    Raises InvalidInput (fewer than 2 classes, no images, ``out`` exists), MissingData (a public folder is not there).
    """
    if out.exists() and not overwrite:
        raise InvalidInput("out", "a file that does not exist yet", str(out))
    found = look(public, test)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(_yaml(private, public, test, found))
    return found


def look(public: Path, test: Path) -> Findings:
    """The facts of two PUBLIC folders."""
    classes = class_folders(require_folder("test", test))
    if len(classes) < 2:
        raise InvalidInput(
            "test", "a folder with one folder of images a class, at least 2", f"{test}: {classes}"
        )
    paths = [path for path in list_files(require_folder("public", public)) if is_image(path)]
    headers = [
        header for row in constant_order(paths)[:SAMPLE] if (header := _header(public / paths[row]))
    ]
    if not headers:
        raise InvalidInput("public", "a folder with readable images", str(public))
    channels = 1 if all(mode in GREY_MODES for _, mode in headers) else 3
    return Findings(tuple(classes), _side([side for side, _ in headers]), channels, len(paths))


def _header(path: Path) -> tuple[int, str] | None:
    """Shorter side (pixels) and colour mode of an image file, without decoding it; None when it is no image."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            return min(image.size), image.mode
    except Exception:  # a damaged file is named by the run; here it is left out
        return None


def _side(sides: Sequence[int]) -> int:
    """The median, within bounds, as a multiple of 4: networks halve the image twice."""
    return min(LARGEST, max(SMALLEST, 4 * round(median(sides) / 4)))


def _quote(value: object) -> str:
    """A string, or a list of strings, as YAML: JSON is part of it."""
    return json.dumps(value, ensure_ascii=False)


def _yaml(private: Path, public: Path, test: Path, found: Findings) -> str:
    queries = max(1, min(MOST_QUERIES, found.public_images // 2))
    return TEMPLATE.format(
        private=_quote(str(private.absolute())),
        public=_quote(str(public.absolute())),
        test=_quote(str(test.absolute())),
        classes=_quote(list(found.classes)),
        image_size=found.image_size,
        channels=found.channels,
        public_images=found.public_images,
        queries=queries,
        asked=2 * queries,
        augment="shift" if found.channels == 1 else "natural",
        answered=max(1, int(2 * queries * ANSWERED_SHARE)),
    )


TEMPLATE = """\
# Written by `labelwall init` from the public folders alone. Next:
#   labelwall plan --config THIS_FILE                  the price, before anything private is read
#   labelwall data --config THIS_FILE                  the custodian's check of the private rows (not for release)
#   labelwall run  --config THIS_FILE --run_dir runs/own

data:
  source: folder
  private: {private}  # PRIVATE: one folder of images a class; read on the private side alone
  public: {public}  # {public_images} images without labels; class folders, if any, serve reported metrics
  test: {test}  # public: one folder of images a class
  classes: {classes}
  image_size: {image_size}  # pixels a side; images are cut to their central square and resized
  channels: {channels}  # 1 grey, 3 RGB

# The guarantee: everything that leaves the private side is (epsilon, delta)-differentially private under adding or
# removing one image. Fix delta without looking at the number of private images; it should be well below 1 over it.
budget:
  epsilon: 1.0
  delta: 1.0e-5

# k nearest private images of a fresh random sample vote. Fix these without looking at private results.
mechanism:
  kind: private_knn
  k: 300  # neighbours that vote; a sample of fewer images votes with all of them
  threshold: 180  # votes that the noisy winner needs, or the query stays unlabelled
  sigma_screen: 75  # noise on the winner's votes when it is compared with the threshold, in votes
  sigma_vote: 25  # noise on every class's votes when the label is drawn, in votes
  sampling_probability: 0.15  # each private image takes part in a vote with this probability; 1 for small data sets

# What the price is for: at most so many queries screened and labels released, over all rounds. More of either costs more.
caps:
  asked: {asked}
  answered: {answered}

# Each round asks, trains the student, and hands its features back for better votes in the next.
rounds:
  - queries: {queries}
  - queries: {queries}

student:
  backbone: small_cnn  # or cifar_conv3, svhn_cvpr20, or timm/NAME for any network of timm
  objective: uda  # supervised, vat or uda: how the unlabelled public images are used
  augment: {augment}  # random distortions: none, shift (small moves, for characters) or natural (adds flips and colour)
  steps: 2000  # optimiser steps a round; more for harder images
  accelerator: cpu  # cpu, gpu or auto
seed: 0  # of public randomness alone (initialisation, batches, which images are asked); never of the noise
custodian_dir: null  # where the ledger and private caches live, mode 0700; next to the run folder when null
"""
