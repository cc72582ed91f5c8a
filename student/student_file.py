"""What a student's file says of itself: everything that its use needs, in safetensors metadata.

One key, `labelwall`, holds one JSON object, so that the same student gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

import safetensors
import safetensors.torch

from ..wall.datasets.table import Scaling
from ..wall.errors import InvalidInput, MissingData
from ..wall.labels.base import LabelSpace
from ..wall.labels.registry import label_space
from ..wall.messages import ExtractorSpec, canonical_json
from ..wall.networks.architectures import MAX_WEIGHT_BYTES
from ..wall.unit import Unit

FORMAT = 1
KEY = "labelwall"
NETWORK = "network"  # the kind of a student whose tensors are a network of wall.networks
MAX_BYTES = MAX_WEIGHT_BYTES + (1 << 20)  # of a file
MAX_SIDE, MAX_DIMENSIONS = 4096, 1 << 20  # of inputs
MAX_TEXT = 1000  # characters
RESIZE = "upright by EXIF, central square, bilinear"  # as wall.datasets.readers does it


def own_version() -> str:
    """labelwall's version; "unknown" where it runs from a checkout that is not installed."""
    try:
        return metadata.version("labelwall")
    except metadata.PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True)
class Privacy:
    """What is guaranteed of a student. Public; every field is that of summary.json.

    ``epsilon``: certified, rounded up; None where nothing is certified. ``certificate``: the name
    of the one it comes from. ``adversary``: against whom. ``ledger_head``: hash (hex) that
    `labelwall audit --expect_head` takes. ``dataset``: the random name of the private records.
    ``unit``: what is protected.
    """

    epsilon: float | None
    delta: float
    certificate: str
    adversary: str
    ledger_head: str
    dataset: str
    unit: Unit = "row"


@dataclass(frozen=True)
class StudentInfo:
    """A student without its weights.

    ``backbone``, ``input_shape``, ``mean``, ``std``: as in ExtractorSpec. ``labels``: what it
    predicts. ``temperature``: its outputs are divided by it before they become probabilities.
    ``kind``: how the file's tensors are read. ``version``: of the labelwall that wrote it.
    ``table``: the columns of its vectors, where they come from a table, and their scales.
    """

    backbone: str
    input_shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    labels: LabelSpace
    temperature: float
    privacy: Privacy
    kind: str = NETWORK
    version: str = field(default_factory=own_version)
    table: Scaling | None = field(default=None, compare=False)

    def spec(self, weights: bytes) -> ExtractorSpec:
        """The network, as wall.networks loads it."""
        return ExtractorSpec(
            self.backbone, self.input_shape, self.labels.outputs, weights, self.mean, self.std
        )

    def to_json(self) -> dict[str, Any]:
        """The JSON object in the file; the lack of a table is not named."""
        return {
            "format": FORMAT,
            "version": self.version,
            "kind": self.kind,
            "backbone": self.backbone,
            "input_shape": list(self.input_shape),
            "preprocessing": {"mean": list(self.mean), "std": list(self.std), "resize": RESIZE},
            "labels": self.labels.fields(),
            "temperature": self.temperature,
            "privacy": asdict(self.privacy),
            **({"table": self.table.to_json()} if self.table else {}),
        }

    @classmethod
    def from_json(cls, fields: object) -> StudentInfo:
        """Inverse of ``to_json``.

        Raises InvalidInput, which names the field, for anything that ``to_json`` does not write.
        """
        rules = _RULES if isinstance(fields, dict) and "table" in fields else _WITHOUT_TABLE
        values = _checked("metadata", fields, rules)
        preprocessing = _checked("preprocessing", values["preprocessing"], _PREPROCESSING)
        labels = _checked("labels", values["labels"], _LABELS)
        privacy = _checked("privacy", values["privacy"], _PRIVACY)
        shape, mean, std = (
            tuple(numbers)
            for numbers in (values["input_shape"], preprocessing["mean"], preprocessing["std"])
        )
        channels = shape[2] if len(shape) == 3 else 0
        if (len(mean), len(std)) != (channels, channels) or not all(std):
            raise _damaged("preprocessing")
        table = None
        if "table" in values:
            numbers = _checked("table", values["table"], _TABLE)
            width = (sum(numbers["widths"]), len(numbers["mean"]), len(numbers["deviation"]))
            if width != shape * 3 or len(numbers["features"]) != len(numbers["widths"]):
                raise _damaged("table")
            table = Scaling.from_json(numbers)
        return cls(
            values["backbone"],
            shape,
            mean,
            std,
            label_space(**labels),
            float(values["temperature"]),
            Privacy(**privacy),
            values["kind"],
            values["version"],
            table,
        )


Rule = Callable[[Any], bool]


def _text(found: object) -> bool:
    return isinstance(found, str) and len(found) <= MAX_TEXT


def _number(low: float, high: float) -> Rule:
    """A number from ``low`` to ``high``; NaN is none."""
    return lambda found: type(found) in (int, float) and low <= found <= high


def _list(rule: Rule) -> Rule:
    return lambda found: isinstance(found, list) and all(map(rule, found))


def _shape(found: object) -> bool:
    """(dimensions,), or (height, width, channels)."""
    if not (isinstance(found, list) and all(type(side) is int and side >= 1 for side in found)):
        return False
    return (len(found) == 1 and found[0] <= MAX_DIMENSIONS) or (
        len(found) == 3 and max(found) <= MAX_SIDE
    )


_FINITE, _POSITIVE = _number(-1e30, 1e30), _number(1e-30, 1e30)
_WITHOUT_TABLE: dict[str, Rule] = {
    "format": lambda found: found == FORMAT,
    "kind": lambda found: found == NETWORK,
    "version": _text,
    "backbone": _text,
    "input_shape": _shape,
    "preprocessing": lambda found: isinstance(found, dict),
    "labels": lambda found: isinstance(found, dict),
    "temperature": _POSITIVE,
    "privacy": lambda found: isinstance(found, dict),
}
_RULES = {**_WITHOUT_TABLE, "table": lambda found: isinstance(found, dict)}
_PREPROCESSING: dict[str, Rule] = {
    "mean": _list(_FINITE),
    "std": _list(_number(0, 1e30)),
    "resize": _text,
}
_LABELS: dict[str, Rule] = {"kind": _text, "names": _list(_text), "bounds": _list(_FINITE)}
_PRIVACY: dict[str, Rule] = {
    "epsilon": lambda found: found is None or _number(0, 1e30)(found),
    "delta": _number(0, 1),
    **dict.fromkeys(("certificate", "adversary", "ledger_head", "dataset"), _text),
    "unit": lambda found: found in get_args(Unit),
}
_TABLE: dict[str, Rule] = {
    "features": _list(_text),
    "widths": _list(lambda found: type(found) is int and found >= 1),
    "mean": _list(_FINITE),
    "deviation": _list(_POSITIVE),
}


def _checked(name: str, fields: object, rules: dict[str, Rule]) -> dict[str, Any]:
    """``fields``, which have exactly the names of ``rules`` and keep these. Raises InvalidInput."""
    if not isinstance(fields, dict):
        raise _damaged(name)
    if "format" in rules and (fields.get("format"), fields.get("kind")) != (FORMAT, NETWORK):
        version = f"of format {FORMAT} and kind {NETWORK}, which this version reads"
        raise InvalidInput("student", version, "another one")
    if fields.keys() != rules.keys():
        raise _damaged(name)
    for field_name, rule in rules.items():
        if not rule(fields[field_name]):
            raise _damaged(field_name if name == "metadata" else name)
    return fields


def _damaged(name: str) -> InvalidInput:
    return InvalidInput("student", "a file with whole metadata", f"damaged {name}")


def pack(info: StudentInfo, weights: bytes) -> bytes:
    """A student's file. ``weights``: safetensors bytes, whose metadata is replaced."""
    text = canonical_json(info.to_json()).decode()
    return safetensors.torch.save(safetensors.torch.load(weights), {KEY: text})


def unpack(content: bytes, source: str = "something else") -> StudentInfo | None:
    """What a file's bytes say of the student; None where they say nothing. ``source``: its name.

    Raises InvalidInput for what is no safetensors file, and as ``StudentInfo.from_json``.
    """
    try:
        size = int.from_bytes(content[:8], "little")
        safetensors.deserialize(content)  # checks the header and that it fits the file
        text = json.loads(content[8 : 8 + size]).get("__metadata__", {}).get(KEY)
    except (safetensors.SafetensorError, ValueError, RecursionError) as error:
        raise InvalidInput("student", "a safetensors file", source) from error
    if text is None:
        return None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged("metadata") from error
    return StudentInfo.from_json(fields)


def read_file(path: Path) -> bytes:
    """A student's file, or the one in a run folder. Raises MissingData, InvalidInput."""
    file = path / "student.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise MissingData(
            "`student` must be the folder of a finished run, or a student.safetensors. "
            f"Found {str(path)!r}."
        )
    if file.stat().st_size > MAX_BYTES:
        raise InvalidInput("student", f"a file of at most {MAX_BYTES} bytes", str(path))
    return file.read_bytes()
