"""What a student's file says of itself: everything that its use needs, in safetensors metadata.

One key, `labelwall`, holds one JSON object, so that the same student gives the same bytes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

import safetensors
import safetensors.torch
from pydantic import ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError, validate_call

from ..wall.datasets.tables import Scaling
from ..wall.errors import InvalidInput, MissingData
from ..wall.labels.base import LabelSpace
from ..wall.labels.registry import label_space
from ..wall.messages import ExtractorSpec, canonical_json
from ..wall.networks.architectures import MAX_WEIGHT_BYTES
from ..wall.unit import Unit

FORMAT: Literal[1] = 1
KEY = "labelwall"
MAX_BYTES = MAX_WEIGHT_BYTES + (1 << 20)  # of a file
MAX_SIDE, MAX_DIMENSIONS = 1024, 1 << 20  # of images, as data.image_size; of vectors
RESIZE = "upright by EXIF, central square, bilinear"  # as wall.datasets.readers does it
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

Text = Annotated[str, Field(max_length=1000)]
Number = Annotated[float, Field(ge=-1e30, le=1e30)]
Positive = Annotated[float, Field(ge=1e-30, le=1e30)]
Count = Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)]


def own_version() -> str:
    """labelwall's version; "unknown" where it runs from a checkout that is not installed."""
    try:
        return metadata.version("labelwall")
    except metadata.PackageNotFoundError:
        return "unknown"


def _damaged(name: str) -> InvalidInput:
    return InvalidInput("student", "a file with whole metadata", f"damaged {name}")


def _space(stored: Any) -> LabelSpace:
    """Inverse of ``LabelSpace.fields``. Raises ValueError, InvalidInput."""
    if not isinstance(stored, dict):
        raise ValueError("no object")
    return validate_call(config=STRICT)(label_space)(**stored)


@dataclass(frozen=True)
class Privacy:
    """What is guaranteed of a student. Public; every field is that of summary.json.

    ``epsilon``: certified, rounded up; None where nothing is certified. ``certificate``: the name
    of the one it comes from. ``adversary``: against whom. ``ledger_head``: hash (hex) that
    `labelwall audit --expect_head` takes. ``dataset``: the random name of the private records.
    ``unit``: what is protected.
    """

    __pydantic_config__ = STRICT

    epsilon: Annotated[float, Field(ge=0, le=1e30)] | None
    delta: Annotated[float, Field(ge=0, le=1)]
    certificate: Text
    adversary: Text
    ledger_head: Text
    dataset: Text
    unit: Unit = "row"


@dataclass(frozen=True)
class StudentInfo:
    """A student without its weights: the JSON object in its file.

    ``backbone``, ``input_shape``, ``mean``, ``std``: as in ExtractorSpec. ``labels``: what it
    predicts. ``temperature``: its outputs are divided by it before they become probabilities.
    ``table``: the columns of its vectors, where they come from a table, and their scales.
    ``version``: of the labelwall that wrote it. ``kind``: how the file's tensors are read.

    A stranger's file is believed in nothing that is not here. Raises InvalidInput where the parts
    do not fit each other.
    """

    __pydantic_config__ = STRICT

    backbone: Text
    input_shape: Annotated[tuple[Count, ...], Field(min_length=1, max_length=3)]
    mean: tuple[Number, ...]
    std: tuple[Positive, ...]
    labels: Annotated[LabelSpace, PlainValidator(_space)]
    temperature: Positive
    privacy: Privacy
    table: Scaling | None = None
    version: Text = field(default_factory=own_version)
    kind: Literal["network"] = "network"
    resize: Text = RESIZE
    format: Literal[1] = FORMAT

    def __post_init__(self) -> None:
        shape, table = self.input_shape, self.table
        channels = shape[2] if len(shape) == 3 else 0
        if len(shape) == 2 or (len(shape) == 3 and max(shape) > MAX_SIDE):
            raise _damaged("input_shape")
        if (len(self.mean), len(self.std)) != (channels, channels):
            raise _damaged("mean, std")
        if table is not None and (
            {sum(table.widths), len(table.mean), len(table.deviation)} != {*shape}
            or len(table.widths) != len(table.features)
        ):
            raise _damaged("table")

    def spec(self, weights: bytes) -> ExtractorSpec:
        """The network, as wall.networks loads it."""
        return ExtractorSpec(
            self.backbone, self.input_shape, self.labels.outputs, weights, self.mean, self.std
        )

    def to_json(self) -> dict[str, Any]:
        """The JSON object in the file."""
        content: dict[str, Any] = asdict(self) | {"labels": self.labels.fields()}
        return json.loads(canonical_json(content))  # type: ignore[no-any-return]


def pack(info: StudentInfo, weights: bytes) -> bytes:
    """A student's file. ``weights``: safetensors bytes, whose metadata is replaced."""
    text = canonical_json(info.to_json()).decode()
    return safetensors.torch.save(safetensors.torch.load(weights), {KEY: text})


def unpack(content: bytes, source: str = "something else") -> StudentInfo | None:
    """What a file's bytes say of the student; None where they say nothing. ``source``: its name.

    Raises InvalidInput, which names the field, for anything that ``pack`` does not write.
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
        info = TypeAdapter(StudentInfo).validate_json(text)
        complete = json.loads(text).keys() == {entry.name for entry in fields(StudentInfo)}
    except ValidationError as error:
        place = error.errors(include_input=False, include_url=False)[0]["loc"]
        raise _damaged(str(place[0]) if place else "metadata") from None
    if not complete:
        raise _damaged("metadata")
    return info


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
