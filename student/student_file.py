"""What a student's file says of itself: everything that its use needs, in safetensors metadata.

One key, `labelwall`, holds one JSON object, so that the same student gives the same bytes.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from ..wall.datasets.table import Scaling
from ..wall.errors import InvalidInput, MissingData
from ..wall.labels.base import LabelSpace
from ..wall.labels.registry import label_space
from ..wall.messages import ExtractorSpec, canonical_json
from ..wall.unit import Unit

FORMAT = 1
KEY = "labelwall"
NETWORK = "network"  # the kind of a student whose tensors are a network of wall.networks
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
        """The JSON object in the file; rows as the unit, and the lack of a table, are not named."""
        privacy = asdict(self.privacy)
        if self.privacy.unit == "row":
            del privacy["unit"]
        return {
            "format": FORMAT,
            "version": self.version,
            "kind": self.kind,
            "backbone": self.backbone,
            "input_shape": list(self.input_shape),
            "preprocessing": {"mean": list(self.mean), "std": list(self.std), "resize": RESIZE},
            "labels": self.labels.fields(),
            "temperature": self.temperature,
            "privacy": privacy,
            **({"table": self.table.to_json()} if self.table else {}),
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> StudentInfo:
        """Inverse of ``to_json``. Raises InvalidInput for another format or kind, or damage."""
        if found.get("format") != FORMAT or found.get("kind") != NETWORK:
            rule = f"of format {FORMAT} and kind {NETWORK}, which this version reads"
            raise InvalidInput("student", rule, f"{found.get('format')}, {found.get('kind')}")
        try:
            info = cls(
                str(found["backbone"]),
                tuple(map(int, found["input_shape"])),
                tuple(map(float, found["preprocessing"]["mean"])),
                tuple(map(float, found["preprocessing"]["std"])),
                label_space(**found["labels"]),
                float(found["temperature"]),
                Privacy(**found["privacy"]),
                found["kind"],
                str(found["version"]),
                Scaling.from_json(found["table"]) if "table" in found else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput("student", "a file with whole metadata", "a damaged one") from error
        if not (math.isfinite(info.temperature) and info.temperature > 0):
            raise InvalidInput("student", "of a positive temperature", info.temperature)
        return info


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
        header = json.loads(content[8 : 8 + size])
        text = header.get("__metadata__", {}).get(KEY)
        found = None if text is None else json.loads(text)
    except (safetensors.SafetensorError, ValueError) as error:
        raise InvalidInput("student", "a safetensors file", source) from error
    if found is not None and not isinstance(found, dict):
        raise InvalidInput("student", "a file with whole metadata", "a damaged one")
    return None if found is None else StudentInfo.from_json(found)


def read_file(path: Path) -> bytes:
    """A student's file, or the one in a run folder. Raises MissingData."""
    file = path / "student.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise MissingData(
            "`student` must be the folder of a finished run, or a student.safetensors. "
            f"Found {str(path)!r}."
        )
    return file.read_bytes()
