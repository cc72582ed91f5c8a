"""`init`: a configuration for the user's image folders, or a copy of a packaged one.

It is written from PUBLIC facts alone: the private folder is not opened.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
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

SAMPLE = 1_000  # public images whose size and colour are read
CONFIGS = "labelwall.configs"
YAML = ".yaml"
COMPARISON = "compare_"  # how names of comparisons begin
# Bounds of the suggested image side, in pixels: networks pool three times; larger images train
# slowly on two cores.
MIN_SIDE, MAX_SIDE = 16, 96
GREY_MODES = {"1", "L", "LA", "I", "I;16", "I;16B", "F"}
ANSWERED_SHARE = 0.735  # CVPR20 Table 1, MNIST: 735 answers to 1,000 queries
MAX_QUERIES = 500  # a round; with the caps below the price stays under 0.96 at delta 1e-5


@dataclass(frozen=True)
class Findings:
    """Facts of the public folders. ``image_size``: the suggested side, in pixels."""

    classes: tuple[str, ...]
    image_size: int
    channels: int
    public_images: int


def init(
    out: Path, packaged: str | None, private: Path | None, public: Path | None, test: Path | None
) -> str:
    """Write a packaged configuration, or one for image folders; returns the command to run next.

    Raises InvalidInput unless ``packaged`` or all three folders are given, and as ``copy_config``
    and ``write_config`` do.
    """
    for name, folder in (("private", private), ("public", public), ("test", test)):
        if (folder is None) == (packaged is None):
            rule = "given, or left out with --from NAME"
            raise InvalidInput(name, rule, None if folder is None else str(folder))
    if packaged is not None:
        copy_config(packaged, out)
        if packaged.startswith(COMPARISON):
            return f"labelwall compare --config {out} --out DIR"
    elif private is not None and public is not None and test is not None:
        write_config(private, public, test, out)
    return f"labelwall plan --config {out}"


def write_config(
    private: Path, public: Path, test: Path, out: Path, *, overwrite: bool = False
) -> Findings:
    """Write a commented YAML configuration for image folders to ``out``; returns what was found.

    ``private``: only its path enters the file; it may be on another machine. ``public``, ``test``:
    folders that are listed, ``test`` with one folder a class; sizes and colours are those of up to
    1,000 public images.

    Raises InvalidInput (fewer than 2 classes, no images, ``out`` exists), MissingData (a public
    folder does not exist).
    """
    if not overwrite:
        _require_new(out)
    found = look(public, test)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(_yaml(private, public, test, found))
    return found


def packaged_configs() -> list[str]:
    """Names of the configurations that are installed with the package, sorted."""
    files = (file.name for file in resources.files(CONFIGS).iterdir())
    return sorted(name.removesuffix(YAML) for name in files if name.endswith(YAML))


def copy_config(name: str, out: Path) -> None:
    """Write the packaged configuration ``name`` to ``out``, byte for byte.

    Raises InvalidInput for an unknown name, or where ``out`` exists.
    """
    if name not in (names := packaged_configs()):
        raise InvalidInput("from", f"one of {', '.join(names)}", name)
    _require_new(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes((resources.files(CONFIGS) / f"{name}{YAML}").read_bytes())


def _require_new(out: Path) -> None:
    if out.exists():
        raise InvalidInput("out", "a file that does not exist yet", str(out))


def look(public: Path, test: Path) -> Findings:
    """The facts of two PUBLIC folders."""
    classes = class_folders(require_folder("test", test))
    if len(classes) < 2:
        rule = "a folder with one folder of images a class, at least 2"
        raise InvalidInput("test", rule, f"{test}: {classes}")
    paths = [path for path in list_files(require_folder("public", public)) if is_image(path)]
    headers = [
        header for row in constant_order(paths)[:SAMPLE] if (header := _header(public / paths[row]))
    ]
    if not headers:
        raise InvalidInput("public", "a folder with readable images", str(public))
    channels = 1 if all(mode in GREY_MODES for _, mode in headers) else 3
    return Findings(tuple(classes), _side([side for side, _ in headers]), channels, len(paths))


def _header(path: Path) -> tuple[int, str] | None:
    """Shorter side (pixels) and colour mode of an image file, not decoded; None for other files."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            return min(image.size), image.mode
    except Exception:  # a damaged file is left out here; the run names it
        return None


def _side(sides: Sequence[int]) -> int:
    """The median as a multiple of 4, within bounds: networks halve the image twice."""
    return min(MAX_SIDE, max(MIN_SIDE, 4 * round(median(sides) / 4)))


def _quote(value: object) -> str:
    """A string, or a list of strings, as YAML, of which JSON is a part."""
    return json.dumps(value, ensure_ascii=False)


def _yaml(private: Path, public: Path, test: Path, found: Findings) -> str:
    queries = max(1, min(MAX_QUERIES, found.public_images // 2))
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
#   labelwall plan --config THIS_FILE    the price, before anything private is read
#   labelwall data --config THIS_FILE    the custodian's check of the private rows (not for release)
#   labelwall run  --config THIS_FILE --run_dir runs/own

data:
  source: folder
  private: {private}  # PRIVATE: one folder of images a class; read on the private side alone
  # Public: {public_images} images without labels; class folders, if any, serve reported metrics.
  public: {public}
  test: {test}  # public: one folder of images a class
  classes: {classes}
  image_size: {image_size}  # pixels a side; images are cut to their central square and resized
  channels: {channels}  # 1 grey, 3 RGB

# The guarantee: everything that leaves the private side is (epsilon, delta)-differentially private
# under adding or removing one image. Fix delta without looking at the number of private images; it
# should be well below 1 over that number.
budget:
  epsilon: 1.0
  delta: 1.0e-5

# The k nearest private images of a fresh random sample vote. Fix these settings without looking at
# private results. The noise follows from the budget and the caps: `plan` prints it.
mechanism:
  kind: private_knn
  k: 300  # neighbours that vote; a sample of fewer images votes with all of them
  threshold: 180  # votes that the noisy winner needs, or the query stays unlabelled
  # Each private image takes part in a vote with this probability; 1 for small data sets.
  sampling_probability: 0.15

# The price pays for at most this many queries screened and labels released, over all rounds. More
# of either costs more.
caps:
  asked: {asked}
  answered: {answered}

# Each round asks, trains the student, and sends its features back for better votes in the next.
rounds:
  - queries: {queries}
  - queries: {queries}

student:
  backbone: small_cnn  # or cifar_conv3, svhn_cvpr20, or timm/NAME for any network of timm
  objective: uda  # supervised, vat or uda: how the unlabelled public images are used
  # Random distortions: none, shift (small moves, for characters) or natural (adds flips, colour).
  augment: {augment}
  steps: 2000  # optimiser steps a round; more for harder images
  accelerator: cpu  # cpu, gpu or auto
# Public randomness alone (initialisation, batches, which images are asked); never the noise.
seed: 0
# Directory of the ledger and private caches, mode 0700; beside the run folder when null.
custodian_dir: null
"""
