"""Received extractors: accepted, timed before a record is embedded, and kept."""

import os
import re
import threading
import timeit
from collections import Counter
from contextlib import suppress
from pathlib import Path

from ...wall.errors import InvalidInput
from ...wall.features.embedder import Embedder
from ...wall.messages import ExtractorSpec, blank_inputs
from ...wall.networks import NETWORKS, PRETRAINED, TIMM
from ...wall.wire import decode_extractor
from ..records.embedding_cache import cache_name
from .callers import OneAtATime
from .replies import refused
from .service_config import ANY, MIB, Settings

MAX_EXTRACTORS = 8  # kept in memory
MAX_ROW_SECONDS = 0.25  # that a received network may take for one row
NO_NETWORKS = ("hog", "raw", "box")
OWN = (*dict.fromkeys((*NO_NETWORKS, *NETWORKS)),)  # what a service accepts unless it is told


def accepted(body: bytes, media: str, sha256: str, settings: Settings) -> ExtractorSpec:
    """A received extractor, if this service accepts it. Sizes are checked before it is built."""
    config, task = settings.config, settings.task
    spec = decode_extractor(body, media, config.max_body * MIB)
    network = re.sub(f"^{PRETRAINED}", TIMM, spec.network)
    names = OWN if config.backbones is None else config.backbones
    if ANY not in names and network not in names:
        rule = f"one of {', '.join(names)}"
        cure = "The custodian's setting `service.backbones` lists them."
        raise InvalidInput("extractor.backbone", rule, network, cure)
    shapes, expected = (spec.input_shape, spec.num_classes), (task.input_shape, task.num_classes)
    if shapes != expected:
        name = "extractor.input_shape, num_classes"
        raise InvalidInput(name, f"the data set's {expected}", shapes)
    if spec.sha256() != sha256:
        raise InvalidInput("sha256", "the identity of the extractor that was sent", sha256)
    return spec


class Extractors:
    """The extractors that can be asked under: those received last, in memory. Networks are tested
    before.

    Where there are too many, the oldest goes of a caller who sent most of them.
    ``directory``: where their records' features are.
    """

    def __init__(self, directory: Path, settings: Settings) -> None:
        self._directory, self._settings = directory, settings
        self._kept: dict[str, tuple[ExtractorSpec, str]] = {}  # by identity: and who sent it
        self._lock, self._testing, self._one = threading.Lock(), threading.Lock(), OneAtATime()

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self._kept

    def get(self, sha256: str) -> ExtractorSpec:
        """A kept extractor. Raises Refused."""
        found = self._kept.get(sha256)
        if found is None:
            raise refused("unknown_extractor")
        return found[0]

    def keep(self, spec: ExtractorSpec, caller: str) -> None:
        """Keep an extractor whose features are there, as the newest."""
        with self._lock:
            self._kept.pop(spec.sha256(), None)
            self._kept[spec.sha256()] = spec, caller
            while len(self._kept) > MAX_EXTRACTORS:
                most = Counter(sender for _, sender in self._kept.values()).most_common(1)[0][0]
                del self._kept[next(i for i, (_, who) in self._kept.items() if who == most)]
            for kept, _ in self._kept.values():  # others' caches are deleted first
                with suppress(FileNotFoundError):
                    os.utime(self._directory / cache_name(kept, self._settings.device))

    def test(self, spec: ExtractorSpec, caller: str) -> None:
        """Build a received network and time it on a row of zeros, besides the writer's work.

        Raises InvalidInput for one that does not fit or is too slow, Refused for a caller's second
        one at the same time.
        """
        if spec.backbone in NO_NETWORKS:
            return
        with self._one.by(caller), self._testing:
            self._settings.load()
            embedder = Embedder(spec, device=self._settings.device)
            row = blank_inputs(spec.input_shape, 1)  # says nothing of private rows
            seconds = timeit.repeat(lambda: embedder.features(row), number=1, repeat=3)
        if min(seconds) > MAX_ROW_SECONDS:
            rule = f"a network that takes at most {MAX_ROW_SECONDS} seconds for a row"
            raise InvalidInput("extractor.backbone", rule, spec.backbone)
