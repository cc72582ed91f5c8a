"""A student in use: its network with the preprocessing, its names and probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ..wall.datasets import arrays, readers
from ..wall.datasets.tables import is_table, read_table
from ..wall.errors import InvalidInput, shape_text
from ..wall.messages import ExtractorSpec
from ..wall.networks import architectures
from ..wall.preprocessing import Preprocessing
from .student_file import StudentInfo, read_file, unpack

BATCH = 500
Inputs = np.ndarray | Sequence[str | Path] | str | Path


class Preprocessed(nn.Module):
    """A network on inputs as they are, as ``Preprocessing`` takes them.

    Gives the network's outputs, float32 [n, outputs]: logits, or a value in -1..1.
    """

    def __init__(self, network: architectures.Backbone, preprocess: Preprocessing) -> None:
        super().__init__()
        self.network: architectures.Backbone = network
        self.preprocess = preprocess

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(self.preprocess(x))


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
        return outputs(self.module, self.rows(inputs), self.info.labels.outputs)

    def predict(self, inputs: Inputs) -> np.ndarray:
        """int64 [n], indices of ``classes``; int64 [n, c] of 0 and 1 for attributes; float64 [n]
        for values. ``inputs`` as for ``rows``.
        """
        return self.info.labels.predict(self.outputs(inputs))

    def probabilities(self, inputs: Inputs) -> np.ndarray:
        """float64 [n, c], a column for each of ``classes``, by the file's temperature; [n, 0] for
        values. ``inputs`` as for ``rows``.
        """
        return self.info.labels.probabilities(self.outputs(inputs), self.info.temperature)

    def rows(self, inputs: Inputs) -> np.ndarray:
        """Inputs as the network takes them: uint8 [n, h, w, c] or float32 [n, d].

        ``inputs``: a path of an image file or several, images uint8 [n, h, w] or [n, h, w, c] of
        any size, vectors [n, d], or for a student of a table the path of another one with its
        columns, which are scaled as ``info.table`` says. Images are cut, resized and converted as a
        run's public rows are. Raises InvalidInput for vectors of another width, images for a
        student of vectors and the other way round, a table without one of the columns, and a file
        that is no readable image, which it names.
        """
        shape = self.info.input_shape
        if isinstance(inputs, str | Path) and self.info.table and is_table(Path(inputs)):
            return self.rows(self.info.table.inputs("inputs", read_table("inputs", inputs)))
        if isinstance(inputs, str | Path):
            return self.rows([inputs])
        if not isinstance(inputs, np.ndarray):
            images = self.read(list(map(str, inputs)))
            if not images.readable.all():
                damaged = inputs[int(np.argmin(images.readable))]
                raise InvalidInput("images", "readable image files", str(damaged))
            return images.pixels
        rows = arrays.canonical_rows("inputs", inputs)
        if rows.ndim == 4 and len(shape) == 3:
            return rows if rows.shape[1:] == shape else readers.fit(rows, *shape)
        if rows.ndim != 2 or rows.shape[1:] != shape:
            kind = "images uint8" if len(shape) == 3 else "vectors float32"
            rule = f"{kind} [n, {', '.join(map(str, shape))}], as the student was trained on"
            raise InvalidInput("inputs", rule, shape_text(rows))
        if not np.isfinite(rows).all():
            raise InvalidInput("inputs", "finite", "NaN, or a number beyond float32")
        return rows

    def read(self, paths: Sequence[str]) -> readers.Images:
        """Image files as the student's inputs; one that can not be read is marked so.

        Raises InvalidInput for a student of vectors, or of images that are not square.
        """
        shape = self.info.input_shape
        if len(shape) != 3 or shape[0] != shape[1]:
            rule = "left out for this student, which takes rows of another shape than square images"
            raise InvalidInput("images", rule, f"inputs of shape {list(shape)}")
        return readers.read_images(Path(), paths, shape[0], shape[2])


def load(path: str | Path) -> StudentModel:
    """The student of a run folder, or of a student.safetensors. Raises MissingData, InvalidInput.

    What a stranger's file says of itself takes no more memory than the file has.
    """
    content = read_file(Path(path))
    info = unpack(content, str(path))
    if info is None:
        raise InvalidInput("student", "a file with labelwall's metadata", str(path))
    return assembled(info, content)


def assembled(info: StudentInfo, weights: bytes) -> StudentModel:
    """A student of its parts; ``weights``: safetensors bytes. Raises InvalidInput."""
    return StudentModel(preprocessed(info.spec(weights)), info, weights)


def preprocessed(spec: ExtractorSpec) -> Preprocessed:
    """A spec's network with its preprocessing, in eval mode, without gradients."""
    preprocess = Preprocessing(spec.mean, spec.std)
    return Preprocessed(architectures.load(spec), preprocess).eval()


def outputs(module: Preprocessed, inputs: np.ndarray, width: int) -> np.ndarray:
    """Outputs float32 [n, width] for uint8 [n, h, w, c] or float32 [n, d], computed in batches."""
    with torch.inference_mode():
        parts = [
            module(torch.tensor(inputs[start : start + BATCH]))
            for start in range(0, len(inputs), BATCH)
        ]
    return torch.cat(parts).numpy() if parts else np.zeros((0, width), dtype=np.float32)
