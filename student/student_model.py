"""A student's file and its use: what the file says of itself, its network with the preprocessing,
names and probabilities.

The file is safetensors; all else is one JSON object under the metadata's one key, `labelwall`, so
that the same student gives the same bytes.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import safetensors
import safetensors.torch
import torch
from pydantic import ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError, validate_call
from torch import nn

from ..wall.datasets import arrays, readers
from ..wall.datasets.columns import Encoding
from ..wall.datasets.folders import is_text_folder
from ..wall.datasets.tables import is_table, read_records
from ..wall.errors import InvalidInput, MissingData, listed, shape_text
from ..wall.features.network import by_session
from ..wall.guarantee import Unit
from ..wall.label_kinds import label_space
from ..wall.labels import LabelSpace
from ..wall.layers import Enlarged
from ..wall.messages import ExtractorSpec, canonical_json
from ..wall.networks import MAX_WEIGHT_BYTES, Backbone, load_network
from ..wall.preprocessing import Preprocessing
from ..wall.progress import TaskProgress, no_progress

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
    """What is guaranteed of a student. Public; every field is that of summary.json."""

    __pydantic_config__ = STRICT

    epsilon: Annotated[float, Field(ge=0, le=1e30)] | None  # rounded up; None: nothing is certified
    delta: Annotated[float, Field(ge=0, le=1)]
    certificate: Text  # its name
    adversary: Text  # against whom it holds
    ledger_head: Text  # hash (hex) that `labelwall audit --expect_head` takes
    dataset: Text  # the random name of the private records
    unit: Unit = "row"  # what is protected


@dataclass(frozen=True)
class StudentInfo:
    """A student without its weights: the JSON object in its file.

    ``backbone``, ``input_shape``, ``mean``, ``std``: as in ExtractorSpec. ``labels``: what it
    predicts. ``table``: how the columns of a table become its vectors, where they come from one.
    ``shares``: of the classes among the rows that it was trained on, which its answers go with.
    ``white``: as ``DataConfig.white``.
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
    privacy: Privacy
    table: Encoding | None = None
    shares: tuple[Positive, ...] | None = None
    white: Positive | None = None
    version: Text = field(default_factory=own_version)
    kind: Literal["network"] = "network"
    resize: Text = RESIZE
    format: Literal[1] = FORMAT

    def __post_init__(self) -> None:
        shape, table = self.input_shape, self.table
        channels = shape[-1] if len(shape) == 3 or (self.mean and table is None) else 0
        if len(shape) == 2 or (len(shape) == 3 and max(shape) > MAX_SIDE):
            raise _damaged("input_shape")
        if (len(self.mean), len(self.std)) != (channels, channels):
            raise _damaged("mean, std")
        if self.shares is not None and len(self.shares) != self.labels.outputs:
            raise _damaged("shares")
        if table is not None and (len(table.mean),) != shape:
            raise _damaged("table")

    def spec(self, weights: bytes) -> ExtractorSpec:
        """The network, as wall.networks loads it."""
        return ExtractorSpec(
            self.backbone, self.input_shape, self.labels.outputs, weights, self.mean, self.std
        )

    def to_json(self) -> dict[str, Any]:
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


BATCH = 500
LARGE_BATCH = 8  # images of a large network: more need memory that takes longer to get than to use
SESSION_ROWS = 500  # of a large network, from which building an ONNX session pays
SESSION_PART = 64  # of these rows at a time
Inputs = np.ndarray | Sequence[str | Path] | str | Path
ESTIMATE: Literal["estimate"] = "estimate"
EM_STEPS, SMALLEST_SHARE = 200, 1e-6
Shares = Sequence[float] | np.ndarray | Mapping[str, float] | Literal["estimate"] | None


class Preprocessed(nn.Module):
    """A network on inputs as they are, as ``Preprocessing`` takes them.

    Gives the network's outputs, float32 [n, outputs]: logits, or a value in -1..1.
    """

    def __init__(self, network: Backbone, preprocess: Preprocessing) -> None:
        super().__init__()
        self.network: Backbone = network
        self.preprocess = preprocess

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(self.preprocess(x))


def reads_table(path: Path) -> bool:
    """Whether a path looks like a table's, or a folder of texts."""
    return is_table(path) or is_text_folder(path)


@dataclass(frozen=True, eq=False)
class StudentModel:
    """A student that answers: ``module`` in eval mode, on the CPU, and what its file says."""

    module: Preprocessed
    info: StudentInfo
    weights: bytes

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes or attributes, in the order of the outputs."""
        return self.info.labels.names

    def outputs(self, inputs: Inputs) -> np.ndarray:
        """float32 [n, outputs], logits or a value in -1..1; ``inputs`` as for ``rows``."""
        return module_outputs(self.module, self.rows(inputs), self.info.labels.outputs)

    def predict(self, inputs: Inputs, shares: Shares = None) -> np.ndarray:
        """int64 [n], indices of ``classes``; int64 [n, c] of 0 and 1 for attributes; float64 [n]
        for values. ``inputs`` as for ``rows``; ``shares`` as for ``for_shares``.
        """
        student = self if shares is None else self.for_shares(shares, inputs)
        return student.info.labels.predict(student.outputs(inputs))

    def for_shares(self, shares: Shares, inputs: Inputs | None = None) -> "StudentModel":
        """This student for rows whose classes have other shares than its public rows had.

        ``shares``: one of each class, in order or by name, which are divided by their sum;
        "estimate": those under which ``inputs`` are most likely (expectation maximisation, Saerens,
        Latinne and Decaestecker 2002). Raises InvalidInput for attributes and values, and for what
        are no shares.
        """
        if self.info.shares is None or self.info.labels.kind != "class":
            raise InvalidInput.needless("shares", "this student has no classes")
        before = np.asarray(self.info.shares)
        if isinstance(shares, str):
            if shares != ESTIMATE or inputs is None:
                raise InvalidInput("shares", f"{ESTIMATE}, or one number a class", shares)
            likely, after = self.probabilities(inputs), before
            for _ in range(EM_STEPS):
                weighted = likely * (after / before)
                after = (weighted / weighted.sum(axis=1, keepdims=True)).mean(axis=0)
        else:
            if isinstance(shares, Mapping):
                shares = [shares.get(name, math.nan) for name in self.classes]
            after = np.asarray(shares, dtype=np.float64)
            if after.shape != before.shape or not (np.isfinite(after) & (after >= 0)).all():
                rule = f"{len(before)} numbers of at least 0, one a class"
                raise InvalidInput("shares", rule, list(map(float, after.ravel()[:8])))
        after = np.maximum(after / max(float(after.sum()), 1e-300), SMALLEST_SHARE)
        info = replace(self.info, shares=tuple(map(float, after / after.sum())))
        tensors = safetensors.torch.load(self.weights)
        offsets = torch.from_numpy(np.log(np.asarray(info.shares) / before))
        tensors["head.bias"] = tensors["head.bias"] + offsets.float()
        return assembled(info, safetensors.torch.save(tensors))

    def probabilities(self, inputs: Inputs) -> np.ndarray:
        """float64 [n, c] for each of ``classes``; [n, 0] for values."""
        return self.info.labels.probabilities(self.outputs(inputs))

    def rows(self, inputs: Inputs) -> np.ndarray:
        """Inputs as the network takes them: uint8 [n, h, w, c] or float32 [n, d].

        ``inputs``: a path of an image file or several, images uint8 [n, h, w] or [n, h, w, c] of
        any size, vectors [n, d], or for a student of a table the path of another one with its
        columns; of an array the columns are ``info.table``'s entries, not scaled: the numbers
        themselves, where all columns are of numbers. A student of texts takes a list or an array of
        them. Images are cut, resized and converted as a run's public rows are. Raises InvalidInput
        for vectors of another width, a row of a table that does not fit, one that is not finite,
        images for a student of vectors and the other way round, a table without one of the columns,
        and a file that is no readable image; MissingData without the sentence model that a student
        of texts needs.
        """
        shape, table = self.info.input_shape, self.info.table
        if isinstance(inputs, str | Path):
            if table is None or not reads_table(Path(inputs)):
                return self.rows([inputs])
            rows, fits = self.records(inputs)
            if not fits.all():
                rule = "a table whose rows have a cell for each column"
                raise InvalidInput("inputs", rule, f"another count in row {int(np.argmin(fits))}")
            return rows
        if table and table.of_text and np.asarray(inputs).dtype.kind in "UOT":
            cells = np.asarray(inputs, dtype=object)
            return self.rows(table.entries("inputs", {table.features[0]: cells}))
        if not isinstance(inputs, np.ndarray):
            images = self.read(list(map(str, inputs)))
            if not images.readable.all():
                damaged = inputs[int(np.argmin(images.readable))]
                raise InvalidInput("images", "readable image files", str(damaged))
            return images.pixels
        if table and inputs.dtype.kind not in "biuf":
            rule = f"a data frame, or a table's path, with the columns {listed(table.features)}"
            raise InvalidInput("inputs", rule, shape_text(inputs))
        rows = arrays.canonical_rows("inputs", inputs)
        if rows.ndim == 4 and len(shape) == 3:
            return rows if rows.shape[1:] == shape else readers.fit(rows, *shape)
        if rows.ndim != 2 or rows.shape[1:] != shape:
            kind = "images uint8" if len(shape) == 3 else "vectors float32"
            rule = f"{kind} [n, {', '.join(map(str, shape))}], as the student was trained on"
            raise InvalidInput("inputs", rule, shape_text(rows))
        arrays.require_finite("inputs", rows)
        return rows if table is None else table.within_reach(rows).astype(rows.dtype)

    def records(self, path: str | Path) -> tuple[np.ndarray, np.ndarray]:
        """(inputs float32 [n, d] of those rows of a table that fit, as of ``rows``; which of all
        rows these are, bool).
        """
        assert self.info.table is not None
        columns, fits = read_records("inputs", path, self.info.table.features)
        return self.rows(self.info.table.entries("inputs", columns)), fits

    def unlike(self, path: Path) -> list[str]:
        """Lines about columns of a table whose cells differ from those of the training."""
        table = self.info.table
        if table is None or table.of_text or not reads_table(path):
            return []
        columns, _ = read_records("inputs", path, table.features)
        return [f"{path}, {line}" for line in table.unlike(columns)]

    def read(self, paths: Sequence[str]) -> readers.Images:
        """Image files as the student's inputs; one that can not be read is marked so.

        Raises InvalidInput for a student of vectors.
        """
        if len(self.info.input_shape) != 3:
            takes = "rows of a table" if self.info.table else "vectors"
            cure = "`labelwall classify --vectors FILE` takes them."
            raise InvalidInput.needless("images", f"this student takes {takes}", cure)
        height, width, channels = self.info.input_shape
        return readers.read_images(Path(), paths, (height, width), channels, white=self.info.white)


def load_student(path: str | Path) -> StudentModel:
    """The student of a run folder, of a folder for the Hugging Face Hub, or of the file in one.

    Raises MissingData, InvalidInput. What a stranger's file says of itself takes no more memory
    than the file has.
    """
    folder = Path(path)
    named = [folder, *(folder / name for name in ("student.safetensors", "model.safetensors"))]
    file = next((file for file in named if file.is_file()), folder)
    if not file.is_file():
        rule = "the folder of a finished run, a student.safetensors, or an exported folder"
        raise MissingData(f"`student` must be {rule}. Found {str(path)!r}.")
    if file.stat().st_size > MAX_BYTES:
        raise InvalidInput("student", f"a file of at most {MAX_BYTES} bytes", str(path))
    content = file.read_bytes()
    info = unpack(content, str(path))
    if info is None:
        raise InvalidInput("student", "a file with labelwall's metadata", str(path))
    return assembled(info, content)


def assembled(info: StudentInfo, weights: bytes) -> StudentModel:
    """A student of its parts; ``weights``: safetensors bytes. Raises InvalidInput."""
    return StudentModel(preprocessed(info.spec(weights), info.table), info, weights)


def preprocessed(spec: ExtractorSpec, table: Encoding | None = None) -> Preprocessed:
    """A spec's network with its preprocessing, in eval mode, without gradients.

    ``table``: of which the network's inputs are the entries, not scaled.
    """
    scale = (table.mean, table.deviation) if table else (spec.mean, spec.std)
    module = Preprocessed(load_network(spec), Preprocessing(*scale)).eval()
    # Channels last take a large network half the seconds
    return module.to(memory_format=torch.channels_last) if is_large(module) else module


def is_large(module: nn.Module) -> bool:
    """Whether it has a network of images of another size, such as ImageNet's."""
    return any(isinstance(part, Enlarged) for part in module.modules())


def batch_size(module: nn.Module) -> int:
    """How many rows a network computes at once."""
    return LARGE_BATCH if is_large(module) else BATCH


def outputs(
    spec: ExtractorSpec, inputs: np.ndarray, progress: TaskProgress = no_progress
) -> np.ndarray:
    """An exported student's outputs for raw inputs: float32 [n, c], logits or a value in -1..1."""
    return module_outputs(preprocessed(spec), inputs, spec.num_classes, progress)


def penultimate_features(spec: ExtractorSpec, rows: np.ndarray) -> np.ndarray:
    """Penultimate features of PUBLIC rows, float32 [n, d], computed in batches."""
    network, preprocess = load_network(spec), Preprocessing(spec.mean, spec.std)
    size = batch_size(network)
    with torch.inference_mode():
        parts = [
            network.features(preprocess(rows[i : i + size])) for i in range(0, len(rows), size)
        ]
    return torch.cat(parts).numpy()


def module_outputs(
    module: Preprocessed, inputs: np.ndarray, width: int, progress: TaskProgress = no_progress
) -> np.ndarray:
    """Outputs float32 [n, width] for uint8 [n, h, w, c] or float32 [n, d].

    Computed in batches, or by a large network for many images with ONNX Runtime, which takes half
    of torch's seconds.
    """
    compute, size = None, batch_size(module)
    if is_large(module) and len(inputs) >= SESSION_ROWS:
        compute = by_session(module, inputs[:1], torch.get_num_threads())
    if compute is not None:
        size = SESSION_PART
    else:
        compute = lambda rows: module(torch.tensor(rows)).numpy()  # noqa: E731
    parts = [np.zeros((0, width), dtype=np.float32)]
    with torch.inference_mode():
        for start in range(0, len(inputs), size):
            parts.append(compute(inputs[start : start + size]))
            progress(start + len(parts[-1]), len(inputs))
    return np.concatenate(parts)
