"""A configuration for one's own data, and what every default follows from: PUBLIC facts alone.

`labelwall init` writes it to a file, `labelwall run --private ...` runs it; both use
``own_settings``. No private file is opened or listed here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from PIL import Image

from ...teacher.accounting.plan import Plan
from ...teacher.mechanisms.base import Priced
from ...teacher.mechanisms.registry import AUTO
from ...teacher.mechanisms.sums import MAX_SIGMA, PrivateLinear
from ...wall.datasets.config import DataConfig
from ...wall.datasets.readers import (
    FORMATS,
    class_folders,
    constant_order,
    is_image,
    list_files,
    require_folder,
)
from ...wall.datasets.sources import describe, read_public
from ...wall.errors import InvalidInput
from .groups import STAGES

MIN_ROWS = 100  # labelled rows; fewer do not predict votes
SAMPLE = 1_000  # public images whose size and colour are read
# Bounds of the suggested image side, in pixels: networks pool three times; larger images train
# slowly on two cores.
MIN_SIDE, MAX_SIDE = 16, 96
GREY_MODES = {"1", "L", "LA", "I", "I;16", "I;16B", "F"}
LARGEST_DELTA = 1e-5
MIN_AXES, MAX_AXES = 32, 512  # of a linear classifier: the first, for many classes
# Tried on CIFAR-10's features, texts and HOG of two sets of images, at epsilon 0.02 to 2.
AXES_BY_STRENGTH, STEPS_BY_ROOT, MIN_STEPS, MAX_STEPS = 0.75, 2.0, 20, 60


@dataclass(frozen=True)
class Findings:
    """Facts of the PUBLIC rows. ``kind``: colour, grey or vectors; ``rows``: a count.

    ``image_size``: the suggested side (pixels), for folders; ``dimensions``: of vectors;
    ``labelled``: public rows with labels, or rows of the test split where those are more.
    """

    kind: str
    classes: tuple[str, ...]
    rows: int
    image_size: int = 0
    dimensions: int = 0
    labelled: int = 0


def own_settings(
    data: dict[str, Any],
    epsilon: float = 1.0,
    delta: float | None = None,
    expected_records: int | None = None,
) -> dict[str, Any]:
    """Settings by name, those of a group as a dict; ``data``: where the rows are.

    ``expected_records``: a PUBLIC guess of the number of private records; the public rows' number
    by default. Raises InvalidInput, MissingData for what ``data`` names.
    """
    facts = look(data)
    records = expected_records or facts.rows
    delta = default_delta(max(facts.rows, records)) if delta is None else delta
    Plan(epsilon, delta, ())  # raises for a budget that is none
    rounds = 2 if facts.kind == "grey" else 1
    features = {"colour": STAGES, "grey": "hog", "vectors": "raw"}[facts.kind]
    data = {**data, "classes": list(facts.classes)}
    if data["source"] == "folder":
        channels = 1 if facts.kind == "grey" else 3
        data |= {"image_size": facts.image_size, "channels": channels}
    rehearsed = facts.labelled >= MIN_ROWS
    return {
        "data": data,
        "budget": {"epsilon": epsilon, "delta": delta},
        "expected_records": expected_records,
        "mechanism": {"kind": AUTO}
        if rehearsed
        else default_mechanism(facts, records, epsilon, delta, rounds),
        "rounds": [{}] * rounds,
        "features": "auto" if rehearsed else features,
        # A network's test for batches runs three times two batches, so its batches are small.
        "batch_size": 256 if features == "raw" else 32,
        "student": default_student(facts),
    }


def default_delta(rows: int) -> float:
    """1e-5, or a power of ten at least ten times below one over the number of PUBLIC rows.

    Delta should be far below one over the number of private records, which is not to be looked at:
    the public rows, or a public guess, stand for it.
    """
    return min(LARGEST_DELTA, float(f"1e{math.floor(math.log10(0.1 / max(rows, 1)))}"))


def default_student(facts: Findings) -> dict[str, object]:
    """The student's network and objective: one layer on a published network's features of colour
    images, small networks elsewhere.
    """
    if facts.kind == "grey":
        return {"backbone": "small_cnn", "objective": "uda", "augment": "shift", "steps": 1200}
    backbone, steps = ("linear", 600) if facts.kind == "colour" else ("mlp", 1200)
    return {"backbone": backbone, "objective": "supervised", "augment": "none", "steps": steps}


def default_mechanism(
    facts: Findings, records: int, epsilon: float, delta: float, rounds: int
) -> dict[str, object]:
    """The mechanism where public rows do not suffice for rehearsals, by a guess of ``records``.

    ``private_linear``: the noise of a sum is the same on every axis, so that their number follows
    ``strength``: the records of a class in deviations of the noise of one step that has the whole
    budget. So does the number of steps, which costs time alone.
    """
    from ...teacher.mechanisms.calibration import calibrate  # the import takes a second

    (solved,) = calibrate([Priced(PrivateLinear(steps=1), rounds, rounds)], epsilon, delta)
    sigma = solved.require("sigma")
    strength = records / (sigma * len(facts.classes))
    drawable = max(1.0, (0.99 * MAX_SIGMA / sigma) ** 2)  # noise rises as their root
    steps = int(min(max(STEPS_BY_ROOT * math.sqrt(strength), MIN_STEPS), MAX_STEPS, drawable))
    fewest = min(2 * len(facts.classes), MIN_AXES)
    most = min(MAX_AXES, max(1, facts.rows // 4), facts.dimensions or MAX_AXES)
    axes = int(min(max(strength * AXES_BY_STRENGTH, fewest), most))
    return {"kind": "private_linear", "steps": steps, "axes": axes}


def look(data: dict[str, Any]) -> Findings:
    """The facts of the PUBLIC rows that settings under ``data`` name.

    Raises InvalidInput, MissingData.
    """
    if data["source"] == "folder":
        return _look_at_folders(Path(str(data["public"])), Path(str(data["test"])))
    config = DataConfig(**data)
    names, public = describe(config).labels.names, read_public(config)
    rows, known = len(public.inputs), 0 if public.labels is None else (public.labels >= 0).sum()
    labelled = max(int(known), len(public.test_labels))
    if public.inputs.ndim == 4:
        kind = "colour" if public.inputs.shape[3] == 3 else "grey"
        return Findings(kind, names, rows, labelled=labelled)
    return Findings("vectors", names, rows, 0, public.inputs.shape[1], labelled)


def _look_at_folders(public: Path, test: Path) -> Findings:
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
    grey = all(mode in GREY_MODES for _, mode in headers)
    side = _side([side for side, _ in headers])
    labelled = sum(is_image(path) for path in list_files(test))
    return Findings("grey" if grey else "colour", tuple(classes), len(paths), side, 0, labelled)


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
