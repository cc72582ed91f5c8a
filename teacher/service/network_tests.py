"""Tests of received networks on public rows, before a record is embedded with one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...wall.errors import InvalidInput
from ...wall.messages import ExtractorSpec
from ..teacher import Teacher
from .jobs import refused

MAX_ROW_SECONDS = 0.25  # that a received network may take for one row
NO_NETWORKS = ("hog", "raw", "box")


class NetworkTests:
    """The tests of one teacher's received networks.

    ``probe``: PUBLIC rows of the custodian. Callers have no influence on them.
    ``batch_size``: rows that the teacher embeds together.
    ``load``: loads what networks need; called before the first is built.
    """

    def __init__(
        self,
        teacher: Teacher,
        probe: np.ndarray | None,
        batch_size: int,
        load: Callable[[], None],
    ) -> None:
        self._teacher, self._probe, self._batch_size = teacher, probe, batch_size
        self._load = load
        self._one, self._changing = threading.Lock(), threading.Lock()
        self._callers: set[str] = set()  # whose networks are being tested
        self._independent: dict[tuple[str, tuple[int, ...]], bool] = {}

    def test(self, spec: ExtractorSpec, caller: str) -> None:
        """Build a received network and test it on public rows, besides the writer's work.

        Networks are tested one by one, and one at a time of each caller. Raises InvalidInput for a
        network that does not fit or is too slow, Refused for a second one.
        """
        if spec.backbone in NO_NETWORKS:
            return
        with self._changing:
            if caller in self._callers:
                raise refused("busy")
            self._callers.add(caller)
        try:
            with self._one:
                self._load()
                self._require_fast(spec)
                self._teacher.embedder(spec, self.probe_for(spec))
        finally:
            with self._changing:
                self._callers.remove(caller)

    def probe_for(self, spec: ExtractorSpec) -> np.ndarray | None:
        """The rows to test an extractor on; None for a network that runs row by row.

        A network is tested with its own weights and, since a caller could choose weights that
        behave well on known rows only, with fresh ones. If one test fails, rows run one by one.
        """
        return self._probe if self._rows_independent(spec) else None

    def _require_fast(self, spec: ExtractorSpec) -> None:
        """Time one row of zeros. It says nothing of private rows, nor of how many there are."""
        alone = self._teacher.embedder(spec, None)
        dtype = np.uint8 if len(spec.input_shape) == 3 else np.float32
        row, seconds = np.zeros((1, *spec.input_shape), dtype=dtype), list[float]()
        for _ in range(3):
            started = time.perf_counter()
            alone.features(row)
            seconds.append(time.perf_counter() - started)
        if min(seconds) > MAX_ROW_SECONDS:
            rule = f"a network that takes at most {MAX_ROW_SECONDS} seconds for a row"
            raise InvalidInput("extractor.backbone", rule, spec.backbone)

    def _rows_independent(self, spec: ExtractorSpec) -> bool:
        """Whether the architecture with fresh weights embeds rows independently in batches."""
        if spec.backbone in NO_NETWORKS or self._probe is None:
            return False
        architecture = spec.backbone, spec.input_shape
        if architecture not in self._independent:
            from ...wall.networks.architectures import build, to_safetensors  # torch

            fresh = build(spec.backbone, input_shape=spec.input_shape, num_classes=spec.num_classes)
            tested = self._teacher.embedder(
                replace(spec, weights=to_safetensors(fresh)), self._probe
            )
            self._independent[architecture] = tested.batch_size == self._batch_size
        return self._independent[architecture]
