"""The messages that cross the wall: queries and extractors in, answers and receipts out."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property

import numpy as np

from .errors import InvalidInput
from .guarantee import POOLED, Unit

Value = int | list[int]  # the ledger's form of one release of a query

AT = "@"  # after a pretrained network's name: the side that images are enlarged to, in pixels
SIDES = 32, 512  # its bounds
BESIDE = "beside/"  # before a name with a side: its features beside those of its usual size
MIRRORED = "mirrored/"  # after it: means over an image and its mirror image
RELEASED = "released/"  # before a network's name (wall/networks.py), as these by kind of labels:
DECIDED = {"class": "decided/", "attributes": "decided_attributes/", "value": "decided_value/"}
LEVELS = {"class": "levels/", "attributes": "levels_attributes/"}
PREDICTED = (*DECIDED.values(), *LEVELS.values())
ABSTAINED = -1  # label of every query without a released class, for any reason


class Outcome(IntEnum):
    """Why a query has a label or none. Outcomes are released, so they are public."""

    ANSWERED = 0
    ABSTAINED = 1  # the noisy screening rejected the query
    CAP_REACHED = 2  # refused without a draw: a cap of the plan is used up


@dataclass(frozen=True)
class Queries:
    """A batch of public inputs to be labelled. Raises InvalidInput for any other dtype or shape.

    ``inputs``: uint8 [n, height, width, channels] images, or float32 [n, dimensions] feature
    vectors, all finite. ``slot``: the entry of the plan that pays.
    """

    inputs: np.ndarray
    slot: int = 0

    def __post_init__(self) -> None:
        x = self.inputs
        image = x.dtype == np.uint8 and x.ndim == 4
        vector = x.dtype == np.float32 and x.ndim == 2
        if not (image or vector):
            rule = "uint8 [n, height, width, channels] or float32 [n, dimensions]"
            raise InvalidInput("queries.inputs", rule, f"{x.dtype} {list(x.shape)}")
        if vector and not np.isfinite(x).all():
            raise InvalidInput("queries.inputs", "finite", "NaN or infinity")
        if self.slot < 0:
            raise InvalidInput("queries.slot", "at least 0", self.slot)

    def identities(self, extractor: str, mechanism: dict[str, object]) -> list[str]:
        """SHA-256 (hex) of each query's raw bytes, the extractor's hash, mechanism, parameters."""
        shape = [str(self.inputs.dtype), *self.inputs.shape[1:]]
        prefix = canonical_json({"extractor": extractor, "mechanism": mechanism, "row": shape})
        little = self.inputs.astype(self.inputs.dtype.newbyteorder("<"), copy=False)
        return [hashlib.sha256(prefix + b"\0" + row.tobytes()).hexdigest() for row in little]


def blank_inputs(shape: tuple[int, ...], count: int) -> np.ndarray:
    """So many inputs of zeros, whose rows have that ``shape``, as queries and records are."""
    return np.zeros((count, *shape), dtype=np.uint8 if len(shape) == 3 else np.float32)


@dataclass(frozen=True)
class Receipt:
    """What a call cost and what is left: counts of releases, hence public. Never of records."""

    asked: int  # queries in the call
    served: int  # of these, answered from the ledger at no charge
    charged: dict[str, int]  # release -> how many this call paid for
    left: dict[str, int]  # release -> how many the slot may still pay for
    ledger_position: int  # sequence number of the last entry
    ledger_head: str  # its hash (hex), which `audit --expect_head` accepts
    clique: int = 0  # for batches: the largest number of balls that a record is assumed to lie in
    reused: int = 0  # of the queries, those on which earlier answers voted, at no charge
    adversary: str = POOLED  # against whom the ledger's certificate holds
    unit: Unit = "row"  # what it protects


@dataclass(frozen=True)
class Answers:
    """Answers to n queries.

    ``labels``: int64 [n] or [n, n_attributes], -1 if none was released, as wall.labels says;
    ``outcomes``: uint8 [n] of Outcome.
    """

    labels: np.ndarray
    outcomes: np.ndarray
    receipt: Receipt


def join_receipts(receipts: Sequence[Receipt]) -> Receipt:
    """The receipt of consecutive calls. What is left, and the ledger's position, are the last's."""
    return replace(
        receipts[-1],
        asked=sum(r.asked for r in receipts),
        served=sum(r.served for r in receipts),
        reused=sum(r.reused for r in receipts),
        charged={name: sum(r.charged[name] for r in receipts) for name in receipts[0].charged},
        clique=max(r.clique for r in receipts),
    )


def join_answers(parts: Sequence[Answers]) -> Answers:
    """The answers to a call's consecutive parts, and the sum of their receipts."""
    return Answers(
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.outcomes for part in parts]),
        join_receipts([part.receipt for part in parts]),
    )


@dataclass(frozen=True)
class ExtractorSpec:
    """A feature map by name: data, never code.

    ``backbone``: "hog", "raw" (feature vectors as they are), "box" (vectors in a declared domain),
    or a name of wall.networks, which is built for ``num_classes`` and ``input_shape``: (height,
    width, channels) of the raw images, or (dimensions,).
    ``weights``: the network's state dict as safetensors bytes; empty for "hog" and "raw".
    ``mean``, ``std``: per-channel pixel statistics of PUBLIC rows, on the 0..1 scale, applied
    before the network; for "box" the middle and half the length of each side of the domain,
    whose sides become -63..63.
    ``center``, ``scale``: features are L2-normalised after subtracting ``center`` (zeros if
    empty), then multiplied by ``scale`` and rounded to integers in -63..63. Both come from PUBLIC
    rows or are constants.
    ``axes``: int16 [d, k] in C order, little-endian, with d = len(center), from PUBLIC rows: the
    centred features are replaced by their k products with these columns before they are scaled.
    Empty: no projection.
    ``radius``: features that are shorter than it keep their length in this unit, longer ones are
    shortened to it; from PUBLIC rows. 0: all are normalised.
    ``landmarks``: int8 [m, k] in C order: features of PUBLIC rows under this extractor, by whose
    distances a mechanism sizes neighbourhoods (``RowForm.landmarks``). Empty: none.
    """

    backbone: str
    input_shape: tuple[int, ...]
    num_classes: int
    weights: bytes = field(default=b"", repr=False)
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    center: tuple[float, ...] = field(default=(), repr=False)
    scale: float = 1.0
    axes: bytes = field(default=b"", repr=False)
    radius: float = 0.0
    landmarks: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if not self.input_shape or any(s < 1 for s in self.input_shape):
            raise InvalidInput("extractor.input_shape", "positive sizes", self.input_shape)
        if not (np.isfinite(self.scale) and self.scale > 0):
            raise InvalidInput("extractor.scale", "positive and finite", self.scale)
        finite = np.isfinite([*self.mean, *self.std, *self.center]).all()
        if not finite or any(s <= 0 for s in self.std):
            name = "extractor.mean, std, center"
            raise InvalidInput(name, "finite, std positive", "something else")
        if self.axes and (not self.center or len(self.axes) % (2 * len(self.center))):
            rule = "int16 [d, k], with a center of d numbers"
            raise InvalidInput("extractor.axes", rule, f"{len(self.axes)} bytes")
        if not (np.isfinite(self.radius) and self.radius >= 0):
            raise InvalidInput("extractor.radius", "finite and not below 0", self.radius)

    @property
    def network(self) -> str:
        """The backbone's name without what its features became, and without a side of images."""
        decided = (known for known in PREDICTED if self.backbone.startswith(known))
        name = self.backbone.removeprefix(next(decided, "")).removeprefix(RELEASED)
        return name.removeprefix(BESIDE).removeprefix(MIRRORED).partition(AT)[0]

    @property
    def plain(self) -> "ExtractorSpec":
        """The spec without what follows its features: others with the same one share these."""
        return replace(self, center=(), scale=1.0, axes=b"", radius=0.0, landmarks=b"")

    def with_mirror(self) -> "ExtractorSpec":
        """Networks side by side, with means over an image and its mirror image."""
        return replace(self, backbone=BESIDE + MIRRORED + self.backbone.removeprefix(BESIDE))

    def without_mirror(self) -> "ExtractorSpec":
        """These networks on the image alone, in half the time; any other network as it is."""
        return replace(self, backbone=self.backbone.replace(BESIDE + MIRRORED, BESIDE))

    def projection(self) -> np.ndarray | None:
        """``axes`` as float64 [d, k] of integers, None if empty."""
        axes = np.frombuffer(self.axes, dtype="<i2").astype(np.float64)
        return axes.reshape(len(self.center), -1) if len(axes) else None

    def landmark_rows(self, dimensions: int) -> np.ndarray:
        """``landmarks`` as int8 [m, dimensions], read-only. Raises InvalidInput for other bytes."""
        rows, rule = np.frombuffer(self.landmarks, dtype=np.int8), f"int8 [m, {dimensions}]"
        if not rows.size or rows.size % dimensions:
            raise InvalidInput("extractor.landmarks", rule, f"{rows.size} bytes")
        if rows.min() < -63 or rows.max() > 63:
            raise InvalidInput("extractor.landmarks", "integers in -63..63", "a larger one")
        return rows.reshape(-1, dimensions)

    def public_fields(self) -> dict[str, object]:
        """The extractor's entry in the ledger: its fields, with weights and arrays as hashes."""
        public: dict[str, object] = {}
        for name, value in vars(self).items():
            if isinstance(value, bytes):
                public[f"{name}_sha256"] = hashlib.sha256(value).hexdigest()
            elif not name.startswith("_"):  # no cached hash
                public[name] = list(value) if isinstance(value, tuple) else value
        if not self.landmarks:
            del public["landmarks_sha256"]
        if not self.radius:
            del public["radius"]
        return public

    def sha256(self) -> str:
        """Identity of the extractor (hex)."""
        return self._sha256

    @cached_property
    def _sha256(self) -> str:
        return hashlib.sha256(canonical_json(self.public_fields())).hexdigest()


def canonical_json(value: object) -> bytes:
    """Canonical bytes of a JSON value, for hashing: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
