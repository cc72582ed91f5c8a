"""How messages travel: arrays as safetensors or npy bodies, everything else as JSON. Nothing received is ever run or unpickled.

A body is checked before it is believed: the sizes that a header claims must be those of the bytes that came, so that no header
makes anybody allocate more than was sent.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict

import numpy as np
import safetensors
import safetensors.numpy

from labelwall.wall.cells import CellCounts
from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import Answers, ExtractorSpec, Receipt

SAFETENSORS, NPY = "application/x-safetensors", "application/x-npy"
MAX_ROWS = 1 << 16  # rows of one request; a client sends more in several
MAX_HEADER, MAX_FIELDS = 1 << 16, 1 << 18  # bytes
DTYPES = {"|u1": np.uint8, "|i1": np.int8, "<f4": np.float32, "<i8": np.int64}
NPY_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<|][a-z]\d)', 'fortran_order': False, 'shape': \((\d{1,18}(?:, \d{1,18})*,?)\), \} *\n",
    re.DOTALL,
)
SPEC_FIELDS = {"backbone", "input_shape", "num_classes", "mean", "std", "center", "scale"}


def encode(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Arrays as one safetensors body."""
    return safetensors.numpy.save(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    )


def decode(
    body: bytes, media: str, names: tuple[str, ...], max_rows: int = MAX_ROWS
) -> dict[str, np.ndarray]:
    """The arrays called ``names`` of a body, and no others; an npy body holds one, whatever its name.

    Raises InvalidInput for another media type, bytes that are not exactly what their header says, a dtype other than uint8,
    int8, float32 and int64, more than ``max_rows`` rows, or rows of no size.
    """
    if media == NPY and len(names) == 1:
        found = {names[0]: _npy(body)}
    elif media == SAFETENSORS:
        found = _safetensors(body)
    else:
        raise InvalidInput("content-type", f"{SAFETENSORS}, or {NPY} for a single array", media)
    if set(found) != set(names):
        raise InvalidInput(
            "body", f"exactly the arrays {', '.join(names)}", f"{len(found)} arrays of other names"
        )
    for name, array in found.items():
        if (
            array.dtype.type not in DTYPES.values()
            or array.ndim < 1
            or 0 in array.shape[1:]
            or array.ndim > 4
        ):
            raise InvalidInput(
                name,
                f"of 1 to 4 dimensions and a dtype of {', '.join(DTYPES)}",
                f"{array.dtype} {list(array.shape)}",
            )
        if len(array) > max_rows:
            raise InvalidInput(name, f"at most {max_rows} rows", len(array))
    return found


def _safetensors(body: bytes) -> dict[str, np.ndarray]:
    if len(body) < 8 or int.from_bytes(body[:8], "little") > min(MAX_HEADER, len(body) - 8):
        raise InvalidInput(
            "body",
            f"safetensors with a header of at most {MAX_HEADER} bytes",
            f"{len(body)} other bytes",
        )
    try:  # the library refuses offsets that are not the shapes' sizes or do not cover the bytes
        return safetensors.numpy.load(body)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise InvalidInput("body", "safetensors", "something else") from error


def _npy(body: bytes) -> np.ndarray:
    """As numpy.save writes an array of numbers, version 1.0 in C order. The header is matched, not evaluated."""
    header = NPY_HEADER.match(body[: 10 + MAX_HEADER])
    if (
        header is None
        or int.from_bytes(body[8:10], "little") != header.end() - 10
        or header[1].decode() not in DTYPES
    ):
        raise InvalidInput(
            "body", f"npy 1.0 in C order, dtype one of {', '.join(DTYPES)}", "something else"
        )
    shape = tuple(int(size) for size in header[2].decode().strip(",").split(", "))
    dtype = np.dtype(DTYPES[header[1].decode()])
    if math.prod(shape) * dtype.itemsize != len(body) - header.end():
        raise InvalidInput("body", "as many bytes as its header says", len(body) - header.end())
    return np.frombuffer(body, dtype=dtype, offset=header.end()).reshape(shape)


def encode_extractor(spec: ExtractorSpec) -> bytes:
    """An extractor as a safetensors body of three byte strings: its fields as JSON, its weights and its axes."""
    fields = {name: value for name, value in asdict(spec).items() if name in SPEC_FIELDS}
    return encode(
        {
            "fields": _bytes(json.dumps(fields).encode()),
            "weights": _bytes(spec.weights),
            "axes": _bytes(spec.axes),
        }
    )


def decode_extractor(body: bytes, media: str, max_bytes: int) -> ExtractorSpec:
    """Inverse of encode_extractor. Raises InvalidInput for anything that is not an extractor's fields and bytes."""
    found = decode(body, media, ("fields", "weights", "axes"), max_rows=max_bytes)
    if (
        any(array.dtype != np.uint8 or array.ndim != 1 for array in found.values())
        or len(found["fields"]) > MAX_FIELDS
    ):
        raise InvalidInput(
            "extractor", f"bytes, uint8 [n], with at most {MAX_FIELDS} of fields", "other arrays"
        )
    try:
        fields = json.loads(found["fields"].tobytes())
    except (ValueError, RecursionError) as error:
        raise InvalidInput("extractor.fields", "JSON", "something else") from error
    return spec_of(fields, found["weights"].tobytes(), found["axes"].tobytes())


def spec_of(fields: object, weights: bytes, axes: bytes = b"") -> ExtractorSpec:
    """The extractor of JSON fields (``ExtractorSpec.public_fields`` without the hashes), weights and axes.

    Raises InvalidInput for missing or unknown fields and for values of another type.
    """
    if not isinstance(fields, dict) or set(fields) != SPEC_FIELDS:
        raise InvalidInput(
            "extractor.fields", f"an object with {', '.join(sorted(SPEC_FIELDS))}", "something else"
        )
    lists = [fields[name] for name in ("input_shape", "mean", "std", "center")]
    sizes, numbers = [fields["num_classes"]], [fields["scale"]]
    if not isinstance(fields["backbone"], str) or not all(
        isinstance(values, list) for values in lists
    ):
        raise InvalidInput("extractor.fields", "a name, sizes and lists of numbers", "other types")
    sizes, numbers = (
        sizes + lists[0],
        [number for values in lists[1:] for number in values] + numbers,
    )
    if not all(type(size) is int and 0 < size < 1 << 20 for size in sizes):
        raise InvalidInput(
            "extractor.input_shape, num_classes", "positive sizes below 2^20", "something else"
        )
    if not all(type(number) in (int, float) and abs(number) < 1e30 for number in numbers):
        raise InvalidInput("extractor.mean, std, center, scale", "finite numbers", "something else")
    tuples = {
        name: tuple(values)
        for name, values in zip(("input_shape", "mean", "std", "center"), lists, strict=True)
    }
    return ExtractorSpec(**{**fields, **tuples}, weights=weights, axes=axes)


def _bytes(content: bytes) -> np.ndarray:
    return np.frombuffer(content, dtype=np.uint8)


def result_to_json(result: Answers | CellCounts) -> dict[str, object]:
    """What a finished request released: lists of integers, and the receipt."""
    receipt = {"receipt": asdict(result.receipt)}
    if isinstance(result, Answers):
        return {"labels": result.labels.tolist(), "outcomes": result.outcomes.tolist(), **receipt}
    return {"counts": None if result.counts is None else result.counts.tolist(), **receipt}


def answers_of(value: dict) -> Answers:  # type: ignore[type-arg]
    """Inverse of result_to_json for answers. Raises InvalidInput for something else."""
    try:
        labels, outcomes = (
            np.array(value["labels"], dtype=np.int64),
            np.array(value["outcomes"], dtype=np.uint8),
        )
        if labels.ndim not in (1, 2) or labels.shape[:1] != outcomes.shape:
            raise ValueError("other shapes")
        return Answers(labels, outcomes, Receipt(**value["receipt"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput("reply", "answers", "something else") from error


def counts_of(value: dict) -> CellCounts:  # type: ignore[type-arg]
    """Inverse of result_to_json for counts. Raises InvalidInput for something else."""
    try:
        counts = value["counts"]
        return CellCounts(
            None if counts is None else np.array(counts, dtype=np.int64),
            Receipt(**value["receipt"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput("reply", "noisy counts", "something else") from error
