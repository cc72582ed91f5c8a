"""The files that rounds leave on the public side, complete round by round; nothing private."""

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..wall.files import reading, write_arrays, write_file
from ..wall.messages import ExtractorSpec
from ..wall.wire import SAFETENSORS, decode_extractor, encode_extractor
from .results import RoundResult, read, write

METRICS, TRAINING_LABELS = "metrics.json", "training_labels.npy"  # files of a round's folder
CLASSIFIER = "linear.safetensors"
PROBABILITIES = "probabilities.npy"  # float32 [n, c], in the order of the answers
FEATURES, COUNTED = "features.safetensors", "counted.safetensors"
EVENTS = "events.tfevents"  # TensorBoard reads every file whose name holds "tfevents"
MAP = "map.npz"  # of public rows, for the report
BOARD = "board"  # folder of what TensorBoard shows of rounds


class RoundFiles:
    """What rounds leave in the folder ``path``.

    Rounds are counted from 1. One is finished once its metrics.json exists, which is written last.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def round(self, number: int) -> Path:
        folder = self.path / f"round_{number}"
        folder.mkdir(exist_ok=True)
        return folder

    def results(self, rounds: int) -> list[RoundResult]:
        """What the finished rounds of the first ``rounds`` came to, in order."""
        files = [self.path / f"round_{number}" / METRICS for number in range(1, rounds + 1)]
        return [read(RoundResult, file) for file in itertools.takewhile(Path.exists, files)]

    def save_result(self, number: int, result: RoundResult) -> None:
        """Store what a round came to, which finishes it."""
        write(result, self.round(number) / METRICS)

    def save_answers(
        self, number: int, rows: np.ndarray, labels: np.ndarray, outcomes: np.ndarray
    ) -> None:
        """Store released answers.

        ``rows``: int64 [n], positions in the public pool; ``labels``: int64 [n], or [n, c] for
        attributes; ``outcomes``: uint8 [n].
        """
        path = self.round(number) / "answers.npz"
        write_arrays(path, rows=rows, labels=labels, outcomes=outcomes)

    def load_answers(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        with reading(path := self.round(number) / "answers.npz"), np.load(path) as stored:
            return stored["rows"], stored["labels"], stored["outcomes"]

    def save_student(self, number: int, spec: ExtractorSpec, labels: np.ndarray) -> None:
        """Store a round's student, and the ``labels`` that it is trained on, int64 [n_public], or
        [n, c].
        """
        write_file(self.round(number) / "student.safetensors", encode_extractor(spec))
        write_arrays(self.round(number) / TRAINING_LABELS, labels)

    def load_extractor(self, number: int) -> ExtractorSpec:
        return self.extractor(f"round_{number}/student.safetensors")

    def extractor(self, file: str) -> ExtractorSpec:
        """The extractor in a file of the run folder."""
        with reading(path := self.path / file):
            return decode_extractor(path.read_bytes(), SAFETENSORS, path.stat().st_size)

    def features(self, file: str, build: Callable[[], ExtractorSpec]) -> ExtractorSpec:
        """The extractor in a file of the run folder, which is built once: a resumed run asks with
        the same one, to the last bit.
        """
        path = self.path / file
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            write_file(path, encode_extractor(build()))
        return self.extractor(file)
