"""`export`: a student in other programs' formats, checked against itself before it is kept."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ...student.model import Preprocessed, StudentModel
from ...wall.errors import LabelwallError, MissingData
from ...wall.messages import canonical_json
from ...wall.preprocessing import unit_scale
from .hub import huggingface_folder, timm_folder
from .output import writing

CHECKED = 8  # rows on which outputs must agree with the student's
TOLERANCE = 1e-4  # of a probability, or of a value as a share of its range
KEY = "labelwall"  # under which an export has the metadata of the student's file


class Answers(nn.Module):
    """A student as one graph: inputs as they are, probabilities or values out.

    ``forward``: of images uint8 [n, h, w, c], or float32 [n, c, h, w] of 0..1, or of vectors
    float32 [n, d]: probabilities float32 [n, c] under the file's temperature, or values [n].
    """

    def __init__(self, student: StudentModel) -> None:
        super().__init__()
        labels = student.info.labels
        self.network: Preprocessed = student.module
        self.kind, self.bounds = labels.kind, labels.bounds
        self.temperature = student.info.temperature

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = self.network(inputs)
        if self.kind == "value":
            low, high = self.bounds
            return low + (outputs[:, 0].clamp(-1, 1) + 1) / 2 * (high - low)
        logits = outputs / self.temperature
        return logits.softmax(dim=1) if self.kind == "class" else logits.sigmoid()


def export(student: StudentModel, folder: Path, form: str, out: Path, inputs: str) -> str:
    """Write the student to ``out`` in the format ``form``; what was checked, in a few words.

    ``folder``: where the student came from, a run folder for huggingface. ``inputs``: what images
    a graph takes, uint8 [n, h, w, c] or float32 [n, c, h, w]. Raises InvalidInput for a student
    that has no such form or a place that can not be written, MissingData where a package is
    missing, LabelwallError where the exported model's outputs differ from the student's.
    """
    with writing(out) as scratch:
        if form == "timm":
            timm_folder(student, scratch)
            return f"timm's model gives the student's outputs on {CHECKED} rows"
        if form == "huggingface":
            huggingface_folder(student, folder, scratch)
            return "a folder to upload"
        return GRAPHS[form](student, example(student, inputs), scratch)


def example(student: StudentModel, inputs: str, count: int = CHECKED) -> torch.Tensor:
    """Rows of noise as a graph takes them: the student's, or of ``inputs`` where it sees images."""
    shape, rng = student.info.input_shape, np.random.default_rng(0)
    if len(shape) == 1:
        return torch.from_numpy(rng.normal(size=(count, *shape)).astype(np.float32))
    images = torch.from_numpy(rng.integers(0, 256, (count, *shape), dtype=np.uint8))
    return images if inputs == "uint8" else unit_scale(images)


def _onnx(student: StudentModel, rows: torch.Tensor, out: Path) -> str:
    """ONNX with any number of rows; its metadata says what the student's file says."""
    if find_spec("onnxscript") is None:
        raise MissingData("the format onnx needs more packages: pip install 'labelwall[export]'.")
    answers = Answers(student).eval()
    with _quiet():
        program = torch.onnx.export(
            answers,
            (rows,),
            input_names=["inputs"],
            output_names=["values" if answers.kind == "value" else "probabilities"],
            dynamic_shapes=({0: torch.export.Dim("rows")},),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    program.model.metadata_props[KEY] = canonical_json(student.info.to_json()).decode()
    program.save(out)
    if find_spec("onnxruntime") is None:
        return "not checked: onnxruntime is not installed"
    import onnxruntime

    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    _check(answers, rows, lambda x: session.run(None, {"inputs": x.numpy()})[0])
    return f"onnxruntime says what torch says on {len(rows)} rows"


def _torchscript(student: StudentModel, rows: torch.Tensor, out: Path) -> str:
    """TorchScript with any number of rows; `labelwall.json` in it is the file's metadata."""
    answers = Answers(student).eval()
    with _quiet():
        traced = torch.jit.trace(answers, rows, check_trace=False)
        extra = {f"{KEY}.json": canonical_json(student.info.to_json())}
        buffer = io.BytesIO()
        torch.jit.save(traced, buffer, _extra_files=extra)
        buffer.seek(0)
        loaded = torch.jit.load(buffer)
    out.write_bytes(buffer.getvalue())
    _check(answers, rows, lambda x: loaded(x).numpy())
    return f"TorchScript says what the student says on {len(rows)} rows"


GRAPHS: dict[str, Callable[[StudentModel, torch.Tensor, Path], str]] = {
    "onnx": _onnx,
    "torchscript": _torchscript,
}


def _check(
    answers: Answers, rows: torch.Tensor, exported: Callable[[torch.Tensor], np.ndarray]
) -> None:
    """Raises LabelwallError unless the exported graph's outputs are the student's, also for another
    number of rows than it was made with.
    """
    low, high = answers.bounds or (0.0, 1.0)
    for some in (rows, rows[:3]):
        with torch.inference_mode():
            expected = answers(some).numpy()
        found = exported(some)
        same = found.shape == expected.shape
        if not same or not np.allclose(found, expected, rtol=0, atol=TOLERANCE * (high - low)):
            raise LabelwallError("the exported model's outputs differ from the student's.")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters' warnings."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
