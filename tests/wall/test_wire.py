"""Wire formats: arrays arrive as sent, and bodies that contradict their headers are refused."""

import json
import pickle
import zlib
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy

from labelwall.wall import wire
from labelwall.wall.errors import InvalidInput
from labelwall.wall.matrices import Cells, NoisyCounts
from labelwall.wall.messages import Answers, ExtractorSpec, Receipt, join_answers
from labelwall.wall.wire import SAFETENSORS, decode

VECTORS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 1), dtype=np.uint8)
RECEIPT = Receipt(3, 1, {"screen": 2}, {"screen": 8}, 4, "ab")
CELLS = Cells(np.zeros((2, 3), dtype=np.int8))
SPEC = ExtractorSpec("small_cnn", (28, 28, 1), 10, b"weights", (0.1,), (1,), (0.25, -1e-9), scale=2)


LISTS = {"input_shape": [3], "mean": [], "std": [], "center": []}
FIELDS: dict[str, object] = {"backbone": "raw", "num_classes": 2, "scale": 1.0, **LISTS}


def claimed(shape: list[int], body: bytes, dtype: str = "F32") -> bytes:
    """A safetensors file that claims a shape for whatever bytes it has."""
    facts = {"dtype": dtype, "shape": shape, "data_offsets": [0, len(body)]}
    header = json.dumps({"inputs": facts}).encode()
    return len(header).to_bytes(8, "little") + header + body


@pytest.mark.parametrize(
    "array", [VECTORS, IMAGES, VECTORS[:0], IMAGES[::-1], np.asfortranarray(VECTORS)]
)
def test_arrays_arrive_as_they_were(array):
    found = decode(wire.encode({"inputs": array}), SAFETENSORS, ("inputs",))["inputs"]
    np.testing.assert_array_equal(found, array, strict=True)


BAD = {
    "pickle": (pickle.dumps([1]), SAFETENSORS),
    "empty": (b"", SAFETENSORS),
    "header longer than the body": ((1 << 60).to_bytes(8, "little") + b"{}", SAFETENSORS),
    "a billion rows": (claimed([10**9, 3], bytes(12)), SAFETENSORS),
    "a billion rows of nothing": (claimed([10**9, 0], b""), SAFETENSORS),
    "negative rows": (claimed([-1, 3], bytes(12)), SAFETENSORS),
    "half": (safetensors.numpy.save({"inputs": VECTORS.astype(np.float16)}), SAFETENSORS),
    "an unknown dtype": (claimed([1, 1], bytes(4), "Q9"), SAFETENSORS),
    "float64": (wire.encode({"inputs": VECTORS.astype(np.float64)}), SAFETENSORS),
    "another name": (wire.encode({"x": VECTORS}), SAFETENSORS),
    "one more array": (wire.encode({"inputs": VECTORS, "labels": VECTORS}), SAFETENSORS),
    "too many rows": (wire.encode({"inputs": np.zeros((11, 1), np.float32)}), SAFETENSORS),
    "five dimensions": (wire.encode({"inputs": np.zeros((1,) * 5, np.float32)}), SAFETENSORS),
    "compressed": (zlib.compress(wire.encode({"inputs": VECTORS})), SAFETENSORS),
    "another media type": (wire.encode({"inputs": VECTORS}), "application/json"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_an_array_is_refused(name):
    body, media = BAD[name]
    with pytest.raises(InvalidInput):
        decode(body, media, ("inputs",), max_rows=10)


def test_an_extractor_arrives_with_its_identity():
    turned = replace(SPEC, center=(0.5, 0.25), axes=np.arange(6, dtype="<i2").tobytes())
    for spec in (SPEC, turned, replace(turned, radius=2.5)):
        received = wire.decode_extractor(wire.encode_extractor(spec), SAFETENSORS, 1 << 20)
        assert received == spec
        assert received.sha256() == spec.sha256()
    assert turned.sha256() not in (
        replace(turned, axes=b"").sha256(),
        replace(turned, radius=2.5).sha256(),
        replace(turned, axes=turned.axes[::-1]).sha256(),
    )
    np.testing.assert_array_equal(turned.projection(), [[0, 1, 2], [3, 4, 5]])


@pytest.mark.parametrize(("center", "size"), [([], 4), ([0.5], 3), ([0.5, 0.5], 6), ([0.5] * 3, 2)])
def test_axes_that_do_not_fit_the_center_are_refused(center, size):
    body = extractor_body(json.dumps(FIELDS | {"center": center}).encode(), size)
    with pytest.raises(InvalidInput, match=r"extractor\.axes"):
        wire.decode_extractor(body, SAFETENSORS, 1 << 20)


def extractor_body(fields: bytes, axes: int = 0) -> bytes:
    """``axes``: how many bytes of them."""
    empty = {"weights": np.zeros(0, np.uint8), "axes": np.zeros(axes, np.uint8)}
    return wire.encode({"fields": np.frombuffer(fields, np.uint8), **empty})


def changed(**fields: object) -> bytes:
    kept = {name: value for name, value in (FIELDS | fields).items() if value is not None}
    return extractor_body(json.dumps(kept).encode())


OTHER_FIELDS: list[dict[str, object]] = [
    *({"more": 1}, {"scale": None}),
    *({"scale": value} for value in (float("nan"), "1", True, 10**400, 0)),
    *({"input_shape": value} for value in ([10**12], [], [-3], [3.0], 3)),
    *({"num_classes": 1 << 40}, {"backbone": ["raw"]}, {"mean": [float("inf")]}),
    *({"std": [0]}, {"center": [[1]]}),
    *({"radius": value} for value in (-1.0, "1", float("nan"))),
]
TEXTS = [b"{", b"[" * 60000, b"\xff", b"1", b" " * (1 << 19)]
BODIES = [changed(**fields) for fields in OTHER_FIELDS] + [extractor_body(text) for text in TEXTS]


@pytest.mark.parametrize("body", BODIES, ids=[*map(str, OTHER_FIELDS), *map(repr, range(5))])
def test_an_extractor_of_other_fields_is_refused(body):
    assert wire.decode_extractor(changed(), SAFETENSORS, 1 << 20).backbone == "raw"
    with pytest.raises(InvalidInput):
        wire.decode_extractor(body, SAFETENSORS, 1 << 20)


LABELS = [2, -1, 0], [[1, -1, 0], [-1, 1, -1], [0, 0, 0]]


@pytest.mark.parametrize("labels", LABELS)
def test_results_arrive_as_they_were(labels):
    answers = Answers(np.array(labels), np.array([0, 1, 0], np.uint8), RECEIPT)
    text = json.dumps(wire.result_to_json(answers))
    received = wire.decode_answers(json.loads(text), classes=3, rows=3)
    for name in ("labels", "outcomes"):
        np.testing.assert_array_equal(getattr(received, name), getattr(answers, name), strict=True)
    assert received.receipt == RECEIPT
    for counts in (np.array([[-3, 4], [0, 1]]), None):
        text = json.dumps(wire.result_to_json(NoisyCounts(counts, RECEIPT)))
        cells = wire.decode_counts(json.loads(text), 2, CELLS)
        assert cells.receipt == RECEIPT
        np.testing.assert_array_equal(cells.counts, counts)


KNOWN = {"labels": [1], "outcomes": [0], "counts": [[1, 2], [3, 4]], "receipt": vars(RECEIPT)}
RECEIPTS: list[object] = [
    *({}, [], None, "x", vars(RECEIPT) | {"charged": {"screen": "x"}}),
    *(vars(RECEIPT) | {"left": None}, vars(RECEIPT) | {"asked": 1.5}),
]
OTHERS: list[object] = [
    *({}, [], None, 3, "labels", [[]] * 3),
    *(KNOWN | {"receipt": receipt} for receipt in RECEIPTS),
    *(KNOWN | {"labels": labels, "counts": labels} for labels in ("x", 1, ["x"], [[[1]]], {})),
    *(KNOWN | {"labels": [code], "counts": [[code]]} for code in (3, -2, 10**30)),
    KNOWN | {"labels": [1, 1], "outcomes": [0, 0], "counts": [[1, 2]]},
    KNOWN | {"labels": [[1, 2]], "counts": [[1, 2, 3], [4, 5, 6]]},
    KNOWN | {"outcomes": [300], "counts": [1, 2]},
]


@pytest.mark.parametrize("value", OTHERS)
def test_a_reply_of_another_form_is_refused(value):
    assert wire.decode_answers(KNOWN, classes=3, rows=1).labels.tolist() == [1]
    assert wire.decode_counts(KNOWN, 2, CELLS).counts is not None
    for decode_reply in (
        lambda: wire.decode_answers(value, classes=3, rows=1),
        lambda: wire.decode_counts(value, 2, CELLS),
    ):
        with pytest.raises(wire.MALFORMED):
            decode_reply()


def test_parts_of_a_call_add_up():
    last = Receipt(2, 0, {"screen": 1}, {"screen": 7}, 9, "cd")
    parts = [
        Answers(np.array([1, 2, -1]), np.array([0, 0, 1], np.uint8), RECEIPT),
        Answers(np.array([0, 1]), np.zeros(2, np.uint8), last),
    ]
    whole = join_answers(parts)
    assert whole.labels.tolist() == [1, 2, -1, 0, 1]
    assert whole.receipt == Receipt(5, 1, {"screen": 3}, {"screen": 7}, 9, "cd")
