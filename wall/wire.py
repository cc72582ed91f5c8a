"""Wire formats: arrays as safetensors, all else as JSON. Nothing is executed or unpickled.

A body is checked before it is parsed further: the sizes its header claims must match the bytes that
arrived, so no header can make the receiver allocate more than was sent.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from pydantic import TypeAdapter

from .errors import InvalidInput
from .label_kinds import STEPS
from .matrices import Matrix, NoisyCounts
from .messages import ABSTAINED, Answers, ExtractorSpec, Receipt

SAFETENSORS = "application/x-safetensors"
MAX_ROWS = 1 << 16  # per request; the client splits larger inputs
MAX_HEADER, MAX_FIELDS = 1 << 16, 1 << 18  # bytes
DTYPES = "uint8", "int8", "int16", "float32", "int64"
LANDMARKS = "landmarks"  # of an extractor
RECEIPT = TypeAdapter(Receipt)
# What reading a reply of another form raises
MALFORMED = ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError
SPEC_LISTS = ("input_shape", "mean", "std", "center")
SPEC_FIELDS = {"backbone", "num_classes", "scale", *SPEC_LISTS}  # and radius, if it is not 0


def encode(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Arrays as one safetensors body."""
    return safetensors.numpy.save({name: np.ascontiguousarray(a) for name, a in arrays.items()})


def decode(
    body: bytes,
    media: str,
    names: tuple[str, ...],
    max_rows: int = MAX_ROWS,
    optional: tuple[str, ...] = (),
) -> dict[str, np.ndarray]:
    """Exactly the arrays called ``names`` of a body, and of the ``optional`` ones those it has.

    Raises InvalidInput for another media type, bytes that are not exactly what their header says,
    another dtype than those of DTYPES, more than ``max_rows`` rows, or rows of size 0.
    """
    if media != SAFETENSORS:
        raise InvalidInput("content-type", SAFETENSORS, media)
    if len(body) < 8 or int.from_bytes(body[:8], "little") > min(MAX_HEADER, len(body) - 8):
        rule = f"safetensors with a header of at most {MAX_HEADER} bytes"
        raise InvalidInput("body", rule, f"{len(body)} other bytes")
    try:  # the library refuses offsets that are not the shapes' sizes or do not cover the bytes
        arrays = safetensors.numpy.load(body)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise InvalidInput("body", "safetensors", "something else") from error
    if not set(names) <= set(arrays) <= {*names, *optional}:
        rule = f"exactly the arrays {', '.join(names)}"
        raise InvalidInput("body", rule, f"{len(arrays)} arrays of other names")
    for name, array in arrays.items():
        if array.dtype.name not in DTYPES or not 1 <= array.ndim <= 4 or 0 in array.shape[1:]:
            rule = f"of 1 to 4 dimensions and a dtype of {', '.join(DTYPES)}"
            raise InvalidInput(name, rule, f"{array.dtype} {list(array.shape)}")
        if len(array) > max_rows:
            raise InvalidInput(name, f"at most {max_rows} rows", len(array))
    return arrays


def encode_extractor(spec: ExtractorSpec) -> bytes:
    """An extractor as a safetensors body: fields (JSON), weights, axes and landmarks as bytes."""
    known = SPEC_FIELDS | ({"radius"} if spec.radius else set())
    fields = {name: value for name, value in asdict(spec).items() if name in known}
    parts = {"fields": json.dumps(fields).encode(), "weights": spec.weights, "axes": spec.axes}
    parts |= {LANDMARKS: spec.landmarks} if spec.landmarks else {}
    return encode({name: np.frombuffer(part, dtype=np.uint8) for name, part in parts.items()})


def decode_extractor(body: bytes, media: str, max_bytes: int) -> ExtractorSpec:
    """Inverse of encode_extractor. Raises InvalidInput for anything else."""
    needed = ("fields", "weights", "axes")
    arrays = decode(body, media, needed, max_rows=max_bytes, optional=(LANDMARKS,))
    all_bytes = all(array.dtype == np.uint8 and array.ndim == 1 for array in arrays.values())
    if not all_bytes or len(arrays["fields"]) > MAX_FIELDS:
        rule = f"bytes, uint8 [n], with at most {MAX_FIELDS} of fields"
        raise InvalidInput("extractor", rule, "other arrays")
    try:
        fields = json.loads(arrays["fields"].tobytes())
    except (ValueError, RecursionError) as error:
        raise InvalidInput("extractor.fields", "JSON", "something else") from error
    content = {name: array.tobytes() for name, array in arrays.items() if name != "fields"}
    return ExtractorSpec(**_checked(fields) | content)


def _checked(fields: Any) -> dict[str, Any]:
    """An extractor's fields, lists as tuples. Raises InvalidInput for others, and other types."""
    if not isinstance(fields, dict) or {*fields} - {"radius"} != SPEC_FIELDS:
        rule = f"an object with {', '.join(sorted(SPEC_FIELDS))}"
        raise InvalidInput("extractor.fields", rule, "something else")
    lists = {name: fields[name] for name in SPEC_LISTS}
    if not isinstance(fields["backbone"], str) or not all(
        isinstance(values, list) for values in lists.values()
    ):
        raise InvalidInput("extractor.fields", "a name, sizes and lists of numbers", "other types")
    sizes = [fields["num_classes"], *lists["input_shape"]]
    if not all(type(size) is int and 0 < size < 1 << 20 for size in sizes):
        name = "extractor.input_shape, num_classes"
        raise InvalidInput(name, "positive sizes below 2^20", "something else")
    numbers = [number for name in SPEC_LISTS[1:] for number in lists[name]]
    numbers += [fields["scale"], fields.get("radius", 0.0)]
    if not all(type(number) in (int, float) and abs(number) < 1e30 for number in numbers):
        raise InvalidInput(
            "extractor.mean, std, center, scale, radius", "finite numbers", "something else"
        )
    return fields | {name: tuple(values) for name, values in lists.items()}


def result_to_json(result: Answers | NoisyCounts) -> dict[str, object]:
    """The releases of a finished request as lists of integers, and its receipt."""
    receipt = {"receipt": asdict(result.receipt)}
    if isinstance(result, Answers):
        return {"labels": result.labels.tolist(), "outcomes": result.outcomes.tolist(), **receipt}
    return {"counts": None if result.counts is None else result.counts.tolist(), **receipt}


def decode_answers(value: Any, classes: int, rows: int) -> Answers:
    """Inverse of result_to_json for answers to ``rows`` queries; ``classes``: a network's outputs.

    Raises one of MALFORMED for anything else.
    """
    labels = np.array(value["labels"], dtype=np.int64)
    outcomes = np.array(value["outcomes"], dtype=np.uint8)
    most = {2: 1}.get(labels.ndim, classes - 1 if classes > 1 else STEPS)  # one output: a value
    fits = labels.ndim in (1, 2) and labels.shape[:1] == outcomes.shape == (rows,)
    if not fits or labels.min(initial=0) < ABSTAINED or labels.max(initial=0) > most:
        raise ValueError("other labels")
    return Answers(labels, outcomes, RECEIPT.validate_python(value["receipt"]))


def decode_counts(value: Any, classes: int, matrix: Matrix) -> NoisyCounts:
    """Inverse of result_to_json for what was counted by ``matrix``. Raises as decode_answers."""
    receipt = RECEIPT.validate_python(value["receipt"])
    if value["counts"] is None:
        return NoisyCounts(None, receipt)
    counts, rows = np.array(value["counts"], dtype=np.int64), len(matrix.entries)
    shapes = [(1, matrix.entries.size + 1)]
    if matrix.kind == "cells":
        shapes = [(rows, classes), (1, 2 * rows)]  # votes, or a score
    if counts.shape not in shapes:
        raise ValueError("another shape")
    return NoisyCounts(counts, receipt)
