"""A configuration for one's own data, and what every default follows from: PUBLIC facts alone.

`labelwall init` writes it to a file, `labelwall run --private ...` runs it; both use
``own_settings``. No private file is opened or listed here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from PIL import Image

from ...teacher.accounting.plan import Plan
from ...teacher.mechanisms.base import Priced
from ...teacher.mechanisms.registry import AUTO
from ...teacher.mechanisms.sums import MAX_SIGMA, PrivateLinear
from ...wall.datasets.readers import (
    FORMATS,
    class_folders,
    constant_order,
    is_image,
    list_files,
    require_folder,
)
from ...wall.datasets.sources import DataConfig, describe, read_public
from ...wall.datasets.tables import is_table
from ...wall.errors import InvalidInput, MissingData

MIN_ROWS = 100  # labelled rows; fewer do not predict votes
SAMPLE = 1_000  # public images whose size and colour are read
# Bounds of the suggested image side, in pixels: networks pool three times; larger images train
# slowly on two cores.
MIN_SIDE, MAX_SIDE = 16, 96
GREY_MODES = {"1", "L", "LA", "I", "I;16", "I;16B", "F"}
SPLITS = ("private", "public", "test")
LARGEST_DELTA = 1e-5
MIN_AXES, MAX_AXES = 32, 512  # of a linear classifier: the first, for many classes
# Tried on CIFAR-10's features, texts and HOG of two sets of images, at epsilon 0.02 to 2.
AXES_BY_STRENGTH, STEPS_BY_ROOT, MIN_STEPS, MAX_STEPS = 0.75, 2.0, 20, 60


@dataclass(frozen=True)
class OwnData:
    """Where one's own rows are, as options name them; None where they were not given.

    ``columns``: other settings under ``data`` that tell which columns of a table are features.
    """

    private: str | None = None
    public: str | None = None
    test: str | None = None
    data: str | None = None
    label: str | None = None
    split: str | None = None
    columns: Mapping[str, object] = field(default_factory=dict)

    @property
    def given(self) -> bool:
        """Whether any option names rows."""
        return any((self.private, self.public, self.test, self.data))

    def settings(self) -> dict[str, object]:
        """The settings under ``data`` that the options stand for.

        Raises InvalidInput unless they name all of the rows in one of the known ways.
        """
        places = {name: getattr(self, name) for name in SPLITS}
        if self.data is None:
            return self._by_split(places)
        for name, value in places.items():
            if value is not None:
                raise InvalidInput(name, "left out with --data, which has all rows", value)
        path = Path(self.data)
        if not path.exists():
            raise MissingData(f"`data` must be an existing file or folder. Found {self.data!r}.")
        if is_table(path):
            return self._table({"path": _absolute(self.data), "split": self.split or "split"})
        if path.is_dir() and not list(path.glob("*.npy")):
            return self._by_split({name: str(path / name) for name in SPLITS})
        if not path.is_dir() and path.suffix.lower() != ".npz":
            rule = "an npz, CSV or parquet file, or a folder with private, public and test"
            raise InvalidInput("data", rule, self.data)
        return {"source": "arrays", "path": _absolute(self.data)}

    def overrides(self) -> dict[str, object]:
        """The settings under ``data`` that the options name, to override a file's."""
        places = {name: getattr(self, name) for name in (*SPLITS, "label", "split")}
        return {name: v for name, v in places.items() if v is not None} | dict(self.columns)

    def _by_split(self, places: dict[str, str | None]) -> dict[str, object]:
        for name, value in places.items():
            if value is None:
                raise InvalidInput(name, "given, with the other two, or --data FILE", None)
        for name in ("public", "test"):
            if not Path(str(places[name])).exists():
                raise MissingData(
                    f"`{name}` must be an existing folder or file. Found {places[name]!r}."
                )
        absolute = {name: _absolute(str(value)) for name, value in places.items()}
        test = Path(absolute["test"])
        if is_table(test):
            return self._table({**absolute})
        if test.is_dir():
            return {"source": "folder", **absolute}
        raise InvalidInput(
            "test", "a folder with one folder of images a class, or a table", str(test)
        )

    def _table(self, places: dict[str, object]) -> dict[str, object]:
        return {"source": "table", **places, "label": self.label or "label", **self.columns}

    @property
    def name(self) -> str:
        """A name for the run: of the file, or of the folder that holds the private rows."""
        path = Path(self.data or self.private or "own").absolute()
        generic = self.data is None and path.stem.lower() in SPLITS
        return (path.parent if generic else path).stem or "own"


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
    own: OwnData,
    epsilon: float = 1.0,
    delta: float | None = None,
    expected_records: int | None = None,
) -> dict[str, Any]:
    """Settings by name, those of a group as a dict, in the order of a file (``as_yaml``).

    ``expected_records``: a PUBLIC guess of the number of private records; the public rows' number
    by default.

    Raises InvalidInput, MissingData for what the options name.
    """
    data = own.settings()
    facts = look(data)
    records = expected_records or facts.rows
    delta = default_delta(max(facts.rows, records)) if delta is None else delta
    Plan(epsilon, delta, ())  # raises for a budget that is none
    rounds = 2 if facts.kind == "grey" else 1
    features = default_features(facts)
    mechanism: dict[str, object] = {"kind": AUTO}
    if facts.labelled >= MIN_ROWS:  # rehearsals choose
        features["features"] = "auto"
    else:
        mechanism = default_mechanism(facts, records, epsilon, delta, rounds)
    return {
        "data": _data(data, facts),
        "budget": {"epsilon": epsilon, "delta": float(f"{delta:.1e}")},
        "expected_records": expected_records,
        "mechanism": mechanism,
        "rounds": [{}] * rounds,
        **features,
        "student": default_student(facts),
        "seed": 0,
        "custodian_dir": None,
    }


def as_yaml(settings: dict[str, Any]) -> str:
    """A commented YAML file of settings; those of several groups or rounds in a line each."""
    parts = [HEADER]
    for name, value in settings.items():
        lines = [f"# {line}" for line in NOTES.get(name, "").splitlines()]
        if isinstance(value, dict) and value:
            lines += [f"{name}:", *(_line(key, entry, 1) for key, entry in value.items())]
        elif isinstance(value, list) and value:
            lines += [f"{name}:", *(f"  - {_quote(entry)}" for entry in value)]
        else:
            lines.append(_line(name, value, 0))
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def default_delta(rows: int) -> float:
    """1e-5, or a power of ten at least ten times below one over the number of PUBLIC rows.

    Delta should be far below one over the number of private records, which is not to be looked at:
    the public rows, or a public guess, stand for it.
    """
    return min(LARGEST_DELTA, 10.0 ** math.floor(math.log10(0.1 / max(rows, 1))))


def default_features(facts: Findings) -> dict[str, object]:
    """Features of the first round, and the batch that computes them.

    A network's test for batches runs three times two batches, so its batches are small.
    """
    name = {"colour": "efficientnet_lite0_stages", "grey": "hog", "vectors": "raw"}[facts.kind]
    return {"features": name, "batch_size": 32 if name != "raw" else 256}


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


def look(data: dict[str, object]) -> Findings:
    """The facts of the PUBLIC rows that settings under ``data`` name.

    Raises InvalidInput, MissingData.
    """
    if data["source"] == "folder":
        return _look_at_folders(Path(str(data["public"])), Path(str(data["test"])))
    config = DataConfig(**data)  # type: ignore[arg-type]
    names, public = describe(config).labels.names, read_public(config)
    rows, known = (
        len(public.inputs),
        0 if public.labels is None else int((public.labels >= 0).sum()),
    )
    labelled = max(known, len(public.test_labels))
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


def _absolute(path: str) -> str:
    return str(Path(path).absolute())


def _data(data: dict[str, object], facts: Findings) -> dict[str, object]:
    settings = {**data, "classes": list(facts.classes)}
    if data["source"] == "folder":
        settings |= {"image_size": facts.image_size, "channels": 1 if facts.kind == "grey" else 3}
    return settings


def _quote(value: object) -> str:
    """A value as YAML, of which JSON is a part but for numbers such as 1e-05."""
    if isinstance(value, float):
        return yaml.safe_dump(value).split("\n")[0]
    return json.dumps(value, ensure_ascii=False)


def _line(name: str, value: object, depth: int) -> str:
    comment = f"  # {COMMENTS[name]}" if name in COMMENTS else ""
    return f"{'  ' * depth}{name}: {_quote(value)}{comment}"


HEADER = """\
# Written by labelwall from public rows alone. Next:
#   labelwall plan --config THIS_FILE    the price, before anything private is read
#   labelwall data --config THIS_FILE    the custodian's check of the private rows (not for release)
#   labelwall run  --config THIS_FILE
"""
COMMENTS = {
    "private": "PRIVATE: read on the private side alone",
    "public": "no labels are needed; where there are any, they serve reported metrics",
    "test": "public, with labels: serves reported metrics",
    "image_size": "pixels a side; images are cut to their central square and resized",
    "channels": "1 grey, 3 RGB",
    "steps": "of the mechanism: noisy sums a round; of the student: optimiser steps",
    "axes": "principal axes of the public rows that the classifier looks at",
    "batch_size": "rows that a network sees at once",
    "backbone": "small_cnn, cifar_conv3, mlp, linear, or timm/NAME",
    "objective": "supervised, vat or uda: how unlabelled public rows are used",
    "augment": "random distortions: none, shift (characters) or natural",
}
NOTES = {
    "budget": """\
The guarantee: everything that leaves the private side is (epsilon, delta)-differentially private
under adding or removing one record. Fix delta without looking at the number of private records;
it should be far below 1 over that number. By default it is 1e-5, or less by the number of public
rows.""",
    "expected_records": """\
A guess of the number of private records from public knowledge; null: as many as public rows.""",
    "mechanism": """\
Fix these settings without looking at private results. `auto`: before the run, mechanisms and
features are rehearsed on public rows, and the best is kept; `plan --out FILE` writes it to a
file. The noise follows from the budget: `plan` prints it.""",
    "rounds": """\
Each round asks about all public rows and trains the student. With a small network, its features
go back for better votes in the next round.""",
    "features": """\
Features of the first round: auto, efficientnet_lite0_stages (ImageNet's weights, in a package)
or timm/NAME for colour images, hog for grey characters, raw or box for vectors.""",
    "seed": """\
Public randomness alone (initialisation, batches, which rows are asked); never the noise.""",
    "custodian_dir": """\
Directory of the ledger and private caches, mode 0700; beside the private rows when null.""",
}
