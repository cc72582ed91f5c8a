"""A configuration for one's own data, and what every default follows from: PUBLIC facts alone. No
private file is opened or listed here.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ...student.linear.measure import carried_axes
from ...student.linear.tuning import AXES_BY_ROWS, MAX_AXES
from ...student.public_settings import STAGES
from ...student.student_config import BY_FEATURES, LINEAR_STEPS, PRETRAINED
from ...student.tuning import LEAST_RECORDS
from ...teacher.accounting.plan import Plan
from ...teacher.mechanisms.base import Charging, Mechanism, Priced
from ...teacher.mechanisms.overlap import MAX_QUERIES
from ...teacher.mechanisms.registry import AUTO, MECHANISMS
from ...teacher.mechanisms.sums import MAX_MULTIPLIER, PrivateLinear
from ...wall.datasets import readers
from ...wall.datasets.data_config import BOX, SHAPES, SPLITS, DataConfig
from ...wall.datasets.folders import constant_order, is_text_folder, list_files
from ...wall.datasets.image_labels import is_image, labels_of
from ...wall.datasets.sources import describe, held_out, read_public, require_unlinked
from ...wall.datasets.tables import is_table
from ...wall.errors import InvalidInput, MissingData
from ...wall.labels import LabelSpace, has_truth
from .arguments import option
from .settings import build, merged, several
from .tuning import (
    FEW_STEPS,
    FINE_RATE,
    MANY_IMAGES,
    MAX_STEPS,
    MIN_ROWS,
    MIN_STEPS,
    SCORE,
    STEPS_BY_ROOT,
)

# Settings under data that say what rows mean
COLUMNS = (
    *("ignore", "keep", "id", "person", "group", "classes", "text", "text_features", "labels"),
    *("bounds", "ranges", "categories", "drawn", "image_size", "channels"),
)
# Options for one's own data. Dotted options override what follows from these.
OWN: dict[str, Any] = {
    "private": "folder with one folder of images or txt files a class, or a table; PRIVATE",
    "public": "folder of images or txt files, or a table; no labels needed. Without any: box draws "
    "a table's rows, shapes draws images",
    "test": "folder with one folder of images or txt files a class, or a table with labels; "
    "public. Without it labelled public rows are held out where there are enough",
    "data": "all rows in one: an npz file, a folder of npy files, a table, or a folder with "
    "private, public and test",
    "label": "name of the column with the label, of a table or of metadata.csv in each folder of "
    "images (default: label)",
    "text": "name of a table's column of free text (columns of long texts are found by themselves)",
    "id": "name of a table's column with an id of each private row (default: record_id)",
    "split": "name of one table's column that says private, public or test (default: split)",
    "epsilon": option(
        "the guarantee: how far one record may change what is released, at most by a factor "
        "e^epsilon (default: 1)",
        type=float,
    ),
    "delta": option(
        "probability added to that bound (default: 1e-5, less for many public rows)", type=float
    ),
    "periods": option(
        "number of equal parts of the budget: one for now, one for each later `labelwall update` "
        "(default: 1)",
        type=int,
    ),
    "refine": option(
        "for images: also train the network's last blocks on the public images (takes minutes)",
        action="store_const",
        const=True,
    ),
    "balanced": option(
        "for rare classes: every class counts the same", action="store_const", const=True
    ),
    "expected_records": option(
        "a public guess of the number of private records, a count (default: the published "
        "split's, or that of public rows, at least 1,000)",
        type=int,
    ),
}
CURES = {  # what to do where rows of a kind are lacking
    "private": "It holds the labelled rows to protect.",
    "public": "Public rows need neither labels nor protection: published ones, of volunteers, or "
    "synthetic ones; a few hundred do. Without any: --public box for a table, shapes for images.",
    "test": "Label a hundred public rows or more: they choose the method and show the accuracy.",
}
SAMPLE = 1_000  # public images whose size and colour are read
# Bounds of the suggested image side, in pixels: networks pool three times; larger images train
# slowly on two cores.
MIN_SIDE, MAX_SIDE = 16, 96
TRAINING = {"backbone", "objective", "augment", "steps"}  # what a kind of student decides
PHOTOGRAPH = 32  # side from which grey images are read as colours, for networks of photographs
LARGEST_DELTA = 1e-5
SPREADSHEETS = (".xlsx", ".xls", ".ods")


@dataclass(frozen=True)
class Findings:
    """Facts of the PUBLIC rows. ``kind``: colour, grey or vectors; ``rows``: a count.

    ``image_size``: the suggested side (pixels), ``white``: as ``DataConfig.white``, for folders;
    ``dimensions``: of vectors;
    ``labelled``: public rows with labels, or rows of the test split where those are more.
    """

    kind: str
    classes: tuple[str, ...]
    rows: int
    image_size: int = 0
    dimensions: int = 0
    labelled: int = 0
    white: float | None = None


def own_settings(
    own: Mapping[str, Any], given: Mapping[str, Any], rehearses: bool = True
) -> dict[str, Any]:
    """All settings by name that options for one's own data, ``own`` by name, stand for.

    ``given``: settings that override them; ``rehearses``: whether a named mechanism, too, gets its
    settings by a rehearsal. Raises InvalidInput, MissingData.
    """
    groups = {group: dict[str, Any]() for group in ("data", "mechanism", "student")}
    groups |= {name: known for name, known in given.items() if isinstance(known, dict)}
    columns = {name: groups["data"][name] for name in COLUMNS if name in groups["data"]}
    data = rows_of(own, columns, apart=bool(given.get("teacher")))
    facts, named = look(data), MECHANISMS.get(groups["mechanism"].get("kind", AUTO))
    if facts.kind == "grey" and str(data.get("channels")) == "3":  # photographs, by whoever knows
        facts = replace(facts, kind="colour")
    records = max(1, own.get("expected_records") or max(facts.rows, LEAST_RECORDS))
    epsilon = own.get("epsilon", 1.0)
    delta = own.get("delta", default_delta(max(facts.rows, records)))
    Plan(epsilon, delta, ())  # raises for a budget that is none
    periods = own.get("periods", 1)
    refine = own.get("refine") or groups["student"].get("backbone") == PRETRAINED
    if refine and data.get("public") == SHAPES:
        why = f"drawn images (`--public {SHAPES}`) cannot teach a network"
        raise InvalidInput.needless("refine", why)
    loop = facts.rows >= MANY_IMAGES if refine else facts.kind == "grey"
    loop &= data.get("public") != SHAPES  # which teach no network
    trained = "rounds" in given or TRAINING & groups["student"].keys()
    rounds, given = 2 if loop else 1, dict(given)
    if isinstance(again := several(given.get("rounds")), list) and again != given.get("rounds"):
        rounds = len(again)
        del given["rounds"]
    features = {"colour": STAGES, "grey": "hog", "vectors": "raw"}[facts.kind]
    if data["source"] == "folder":
        small = facts.kind == "grey" and facts.image_size < PHOTOGRAPH
        channels = 1 if small else 3  # which the rehearsal's network takes
        data |= {"image_size": facts.image_size, "channels": channels, "white": facts.white}
    rehearsed = facts.labelled >= MIN_ROWS
    if refine and facts.kind == "vectors":
        raise InvalidInput.needless("refine", "the rows are no images")
    if named and not {"caps", "rounds"} & given.keys():
        settled = fitting(groups["mechanism"], facts, records, rehearsed and rehearses)
        given = {**given, "mechanism": settled}
        named = MECHANISMS.get(str(settled["kind"]))
    asked = None if named is None else queries_of(named(), facts.rows // rounds)
    mechanism: dict[str, object] = {"kind": AUTO}
    if not rehearsed and not given.get("teacher"):  # which has a method of its own
        mechanism = default_mechanism(facts, records, epsilon, delta, periods * rounds)
    settings: dict[str, Any] = {
        "data": data | ({} if data.get("bounds") else {"classes": list(facts.classes)}),
        "budget": {"epsilon": epsilon, "delta": delta, "periods": periods},
        "expected_records": own.get("expected_records"),
        "mechanism": mechanism,
        "rounds": [{"queries": asked}] * rounds,
        "privacy": {"unit": "person" if data.get("person") else "row"},
        "evaluate": {} if rehearsed else {"share": SCORE},
        "features": STAGES if refine else "auto" if rehearsed and named is None else features,
        "public_labels": "train",
        "balanced": bool(own.get("balanced")),
        "student": pretrained_student(facts) if refine else default_student(facts, given),
    }
    photographs = facts.kind == "grey" and data.get("channels") == 3  # maybe
    if photographs and settings["features"] == "auto" and not trained:
        settings["student"]["backbone"] = BY_FEATURES
    return merged(settings, given)


def overrides(own: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by name that options for one's own data override in a file."""
    data = {name: own[name] for name in (*SPLITS, "label", "split", "id") if name in own}
    if "text" in own:
        data["text"] = [own["text"]]
    if "data" in own:
        data = rows_of(own, {})
    if "refine" in own:
        why = "with --config, set `student.backbone: pretrained` in the file"
        raise InvalidInput.needless("refine", why)
    budget = {name: own[name] for name in ("epsilon", "delta", "periods") if name in own}
    known = {"expected_records", "balanced"} & own.keys()
    return {"data": data, "budget": budget, **{name: own[name] for name in known}}


def names_rows(own: Mapping[str, Any]) -> bool:
    """Whether options for one's own data say where rows are."""
    return any(name in own for name in (*SPLITS, "data"))


def run_name(own: Mapping[str, Any], files: Sequence[str]) -> str:
    """A name for a run: of its data or of its file; empty where nothing names it."""
    if files and "data" not in own:
        return Path(files[-1]).stem
    named = own.get("data") or own.get("private") or own.get("public")
    path = Path(named or "").absolute()
    generic = "data" not in own and path.stem.lower() in SPLITS
    return (path.parent if generic else path).stem if names_rows(own) else ""


def rows_of(
    own: Mapping[str, Any], columns: Mapping[str, Any], apart: bool = False
) -> dict[str, Any]:
    """The settings under ``data``. Raises InvalidInput unless the options name all of the rows, but
    for private ones that services have, ``apart``.
    """
    for name in (*SPLITS, "data"):
        if str(own.get(name, "")).lower().endswith(SPREADSHEETS):
            raise InvalidInput(name, "a CSV or parquet file", own[name], "Save it as CSV UTF-8.")
    label = {"label": own["label"]} if "label" in own else {}
    table = {"source": "table", "label": "label", **label, **columns}
    images = {"source": "folder", **label, **columns}
    if "text" in own:
        table["text"] = [own["text"]]
    if "id" in own:
        table["id"] = own["id"]
    places = {name: own.get(name) for name in SPLITS}
    drawn = {BOX: table, SHAPES: images}.get(own.get("public", ""))
    if "data" in own:
        public = {} if drawn is None else {"public": own["public"]}
        for name in SPLITS:
            if name in own and name not in public:
                raise InvalidInput.needless(name, "--data has all rows")
        path = Path(own["data"])
        if not path.exists():
            raise MissingData(f"`data` must be an existing file or folder. Found {own['data']!r}.")
        if is_table(path):
            place = {"path": str(path.absolute()), "split": own.get("split", "split")}
            return table | place | public
        if not path.is_dir() and path.suffix.lower() != ".npz":
            rule = "an npz, CSV, parquet or DuckDB file, or a folder with private, public and test"
            raise InvalidInput("data", rule, own["data"])
        if not path.is_dir() or list(path.glob("*.npy")) or (path / "public.npz").exists():
            return {"source": "arrays", **columns, "path": str(path.absolute()), **public}
        places = {name: str(path / name) for name in SPLITS} | public
        if not (path / "test").exists():
            places["test"] = None
    absolute = dict[str, str | None]()
    for name, value in places.items():
        if drawn and name == "public":
            absolute[name] = value
            continue
        if value is None and name != "test" and not (apart and name == "private"):
            raise InvalidInput.missing(name, "there is no --data FILE with all rows", CURES[name])
        if value is not None and name != "private" and not Path(value).exists():
            raise MissingData(f"`{name}` must be an existing folder or file. Found {value!r}.")
        absolute[name] = value and str(Path(value).absolute())
    if drawn is not None:
        return drawn | absolute
    shown = "public" if places["test"] is None else "test"
    path = Path(str(absolute[shown]))
    if is_table(path) or is_text_folder(path):
        return table | absolute
    if path.is_dir():
        return images | absolute
    rule = "a folder with one folder of images or txt files a class, or a table"
    raise InvalidInput(shown, rule, str(path))


def default_delta(rows: int) -> float:
    """1e-5, or the largest power of ten that is ten times below one over the number of rows. These
    are PUBLIC rows, or a public guess: nobody looks at the number of private records.
    """
    return min(LARGEST_DELTA, float(f"1e{math.floor(math.log10(0.1 / max(rows, 1)))}"))


def fitting(
    named: Mapping[str, object], facts: Findings, records: int, rehearsed: bool
) -> dict[str, object]:
    """The settings of a ``named`` kind. Those that are not given follow from a rehearsal, or from
    a guess of the ``records`` where there is none. Raises as ``build`` for given ones.
    """
    kind = MECHANISMS[str(named["kind"])]
    given = {name: value for name, value in named.items() if name != "kind"}
    try:
        build(kind, named, "mechanism")
    except InvalidInput as error:  # of a default beside a given setting: that is found otherwise
        if error.name.rpartition(".")[2] in given:
            raise
    if rehearsed and kind.rehearsed:
        return {"kind": AUTO, "among": kind().kind, "given": given}
    votes = str(given.get(kind.limit))
    most = int(votes) if votes.isdecimal() else None
    return kind().sized_for(records, len(facts.classes), facts.rows, most).fields() | given


def queries_of(mechanism: Mechanism, rows: int) -> int | None:
    """What a round asks of so many public ``rows``: each, as far as one batch takes them; None
    where the price does not count them.
    """
    if mechanism.charging is Charging.PER_BATCH:
        return min(rows, MAX_QUERIES)
    return None if mechanism.once_a_round else rows


def large(delta: float, records: int) -> str | None:
    """What a delta above one over the ``records``, a public guess, means; None for others."""
    if delta * records <= 1:
        return None
    return (
        f"warning: delta {delta:g} is larger than 1/{records:,} (one over the guessed number of "
        "records). At that delta a release may show a whole record. Take --delta "
        f"{default_delta(records):g}."
    )


def default_student(facts: Findings, given: Mapping[str, Any]) -> dict[str, object]:
    """One layer on a published network's features of colour images, small networks elsewhere, also
    where the ``given`` settings name features without a network.
    """
    if facts.kind == "grey" or (facts.kind == "colour" and given.get("features") in ("hog", "raw")):
        augment = "shift" if facts.kind == "grey" else "natural"
        return {"backbone": "small_cnn", "objective": "uda", "augment": augment, "steps": 1200}
    # Of 26 classes a network learns four points more in three times the steps.
    curved = max(1200, 120 * len(facts.classes))
    backbone, steps = ("linear", LINEAR_STEPS) if facts.kind == "colour" else ("mlp", curved)
    return {"backbone": backbone, "objective": "supervised", "augment": "none", "steps": steps}


def pretrained_student(facts: Findings) -> dict[str, object]:
    """The features' network, which learns on the public images: by labels of private rows alone it
    repeats their mistakes, so it is trained shortly.
    """
    augment = "shift" if facts.kind == "grey" else "natural"
    steps = FEW_STEPS if facts.rows < MANY_IMAGES else 2 * FEW_STEPS
    learns = {"objective": "fixmatch", "augment": augment, "learning_rate": FINE_RATE}
    return {"backbone": PRETRAINED, "steps": steps, **learns}


def default_mechanism(
    facts: Findings, records: int, epsilon: float, delta: float, rounds: int
) -> dict[str, object]:
    """The mechanism where public rows do not suffice for rehearsals, by a guess of ``records``.

    The numbers of axes and of steps follow ``strength``: the records of a class, divided by the
    noise's standard deviation if one step took the whole budget.
    """
    from ...teacher.mechanisms.calibration import calibrate  # the import takes a second

    (solved,) = calibrate([Priced(PrivateLinear(steps=1), rounds, rounds)], epsilon, delta)
    sigma = solved.require("noise_multiplier")
    strength = records / (sigma * len(facts.classes))
    drawable = max(1.0, (0.99 * MAX_MULTIPLIER / sigma) ** 2)  # noise rises as their root
    steps = int(min(max(STEPS_BY_ROOT * math.sqrt(strength), MIN_STEPS), MAX_STEPS, drawable))
    most = min(max(1, int(facts.rows * AXES_BY_ROWS)), facts.dimensions or MAX_AXES)
    axes = carried_axes(strength, len(facts.classes), most)
    return {"kind": "private_linear", "steps": steps, "axes": axes}


def look(data: dict[str, Any]) -> Findings:
    """The facts of the PUBLIC rows that settings under ``data`` name."""
    config = build(DataConfig, data, "data")
    require_unlinked(config)
    space = describe(config).labels
    if data["source"] == "folder":
        return _look_at_folders(config, space)
    public = read_public(config)
    rows, known = len(public.inputs), 0
    if public.labels is not None:
        known = int(has_truth(public.labels).sum())
    labelled = max(known, len(public.test_labels))
    if public.inputs.ndim == 4:
        kind = "colour" if public.inputs.shape[3] == 3 else "grey"
        return Findings(kind, space.names, rows, labelled=labelled)
    return Findings("vectors", space.names, rows, 0, public.inputs.shape[1], labelled)


def _look_at_folders(config: DataConfig, space: LabelSpace) -> Findings:
    test, name = Path(config.test) if config.test else None, "test" if config.draws else "public"
    if test is None and config.draws:
        kind = "grey" if config.channels == 1 else "colour"
        return Findings(kind, space.names, config.drawn, config.image_size)
    public = readers.require_folder(name, getattr(config, name))
    paths = readers.image_files(name, public)
    test_rows, sides, modes, deep = 0, list[int](), set[str](), list[float]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for row in constant_order(paths)[:SAMPLE]:
            # A damaged file is left out here; the run names it.
            with suppress(Exception), readers.open_image(public / paths[row]) as image:
                sides.append(min(image.size))
                modes.add(image.mode)
                if image.mode.startswith(readers.DEEP):  # others are not decoded here
                    deep.append(float(np.nan_to_num(np.asarray(image)).max()))
    if not sides:
        raise InvalidInput(name, "a folder with readable images", str(public))
    # A multiple of 4: networks halve the image twice.
    side = min(MAX_SIDE, max(MIN_SIDE, 4 * round(median(sides) / 4)))
    labels = labels_of(config, space, f"data.{name}", public, paths)
    labelled = int(has_truth(labels).sum())
    if test is not None:
        labelled = max(labelled, sum(is_image(path) for path in list_files(test)))
    else:
        labelled -= (test_rows := held_out(labelled))
    kind = "grey" if modes <= readers.GREYS else "colour"
    most = max(deep, default=0.0)  # white is 1, or all bits of the fewest that hold it
    white = 2.0 ** max(8, int(most).bit_length()) - 1 if most > 1 else 1.0
    return Findings(
        kind=kind,
        classes=space.names,
        rows=config.drawn if config.draws else len(paths) - test_rows,
        image_size=side,
        labelled=labelled,
        white=white if deep else None,
    )
