"""A public integer matrix that a teacher counts all its records by: one noisy release."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from .errors import InvalidInput
from .messages import Receipt, canonical_json


class Matrix(ABC):
    """A matrix of one ``kind``; its entries and the slot of the plan that pays.

    Class attributes:
        kind: its name, in identities, configurations and routes of a service.
        array: the name of its entries on the wire.
    """

    kind: ClassVar[str]
    array: ClassVar[str]
    slot: int

    @property
    @abstractmethod
    def entries(self) -> np.ndarray:
        """The integers, [rows, columns]."""

    def identity(self, extractor: str, mechanism: dict[str, object]) -> str:
        """SHA-256 (hex) of the entries in order, the extractor's hash, mechanism and parameters."""
        entries = self.entries
        prefix = canonical_json(
            {"extractor": extractor, "mechanism": mechanism, self.kind: list(entries.shape)}
        )
        little = np.ascontiguousarray(entries).astype(entries.dtype.newbyteorder("<"), copy=False)
        return hashlib.sha256(prefix + b"\0" + little.tobytes()).hexdigest()

    def identities(self, extractor: str, mechanism: dict[str, object]) -> list[str]:
        """The one ``identity``, as a call's queries have theirs."""
        return [self.identity(extractor, mechanism)]

    def require(self, dtype: type, shape_rule: str, fits: bool, largest: int) -> None:
        """Raise InvalidInput unless the entries have ``dtype`` and are at most ``largest``.

        ``fits``: whether their shape does; ``shape_rule``: what it must be.
        """
        name, entries = f"{self.kind}.{self.array}", self.entries
        if entries.dtype != dtype or not fits:
            rule = f"{np.dtype(dtype)} {shape_rule}"
            raise InvalidInput(name, rule, f"{entries.dtype} {list(entries.shape)}")
        for extreme in (int(entries.min()), int(entries.max())):
            if abs(extreme) > largest:
                raise InvalidInput(name, f"integers in -{largest}..{largest}", extreme)
        if self.slot < 0:
            raise InvalidInput(f"{self.kind}.slot", "at least 0", self.slot)


@dataclass(frozen=True)
class NoisyCounts:
    """What a matrix gets: one release, or the refusal of a cap.

    ``counts``: int64, None if the cap was reached. Of cells: [m, n_classes] noisy votes, some
    negative. Of weights: [1, (d + 1) * n_classes + 1] noisy sums (wall/weights.py).
    """

    counts: np.ndarray | None = field(repr=False)
    receipt: Receipt
