"""What a student's file says of itself: everything that its use needs, in safetensors metadata.

One key, `labelwall`, holds one JSON object, so that the same student gives the same bytes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

import safetensors
import safetensors.torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

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
MAX_SIDE, MAX_DIMENSIONS = 1024, 1 << 20  # of images, as data.image_size; of vectors
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
        try:
            file = _File.model_validate(fields)
            labels = label_space(**file.labels.model_dump())
        except ValidationError as error:
            place = error.errors(include_input=False, include_url=False)[0]["loc"]
            raise _damaged(str(place[0]) if place else "metadata") from None
        except ValueError as error:  # as many bounds as values have not
            raise _damaged("labels") from error
        shape, (mean, std) = (
            tuple(file.input_shape),
            (file.preprocessing.mean, file.preprocessing.std),
        )
        channels = shape[2] if len(shape) == 3 else 0
        if len(shape) == 2 or (len(shape) == 3 and max(shape) > MAX_SIDE):
            raise _damaged("input_shape")
        if (len(mean), len(std)) != (channels, channels):
            raise _damaged("preprocessing")
        table = None
        if file.table is not None:
            widths, numbers = file.table.widths, (file.table.mean, file.table.deviation)
            if {sum(widths), *map(len, numbers)} != {*shape} or len(widths) != len(
                file.table.features
            ):
                raise _damaged("table")
            table = Scaling.from_json(file.table.model_dump())
        privacy = Privacy(**file.privacy.model_dump())
        return cls(
            file.backbone,
            shape,
            tuple(mean),
            tuple(std),
            labels,
            file.temperature,
            privacy,
            file.kind,
            file.version,
            table,
        )


Text = Annotated[str, Field(max_length=1000)]
Number = Annotated[float, Field(ge=-1e30, le=1e30)]
Positive = Annotated[float, Field(ge=1e-30, le=1e30)]
Count = Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _Preprocessing(_Strict):
    mean: list[Number]
    std: list[Positive]
    resize: Text


class _Labels(_Strict):
    kind: Text
    names: list[Text]
    bounds: list[Number]


class _Privacy(_Strict):
    epsilon: Annotated[float, Field(ge=0, le=1e30)] | None
    delta: Annotated[float, Field(ge=0, le=1)]
    certificate: Text
    adversary: Text
    ledger_head: Text
    dataset: Text
    unit: Unit


class _Table(_Strict):
    features: list[Text]
    widths: list[Count]
    mean: list[Number]
    deviation: list[Positive]


class _File(_Strict):
    """What ``to_json`` writes. A stranger's file is believed in nothing that is not here."""

    format: Literal[1]
    kind: Literal["network"]
    version: Text
    backbone: Text
    input_shape: Annotated[list[Count], Field(min_length=1, max_length=3)]
    preprocessing: _Preprocessing
    labels: _Labels
    temperature: Positive
    privacy: _Privacy
    table: _Table | None = None


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
