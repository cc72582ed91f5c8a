"""`export`: a student in other programs' formats, checked against itself before it is kept."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

from ...student.student_model import KEY, Preprocessed, StudentInfo, StudentModel, pack
from ...wall.errors import InvalidInput, LabelwallError
from ...wall.messages import canonical_json
from ...wall.networks import TIMM, to_onnx
from ...wall.preprocessing import LARGEST_PIXEL, Preprocessing, unit_scale
from ..data import LABELS
from ..report.report import card, read_run
from .classify import writing

CHECKED = 8  # rows on which outputs must agree with the student's
TOLERANCE = 1e-4  # of a probability, or of a value as a share of its range
BILINEAR = 2  # Pillow's number of it


class AnsweringNetwork(nn.Module):
    """A student as one graph: inputs as they are, probabilities or values out.

    ``forward``: of images uint8 [n, h, w, c], or float32 [n, c, h, w] of 0..1, or of vectors
    float32 [n, d]: probabilities float32 [n, c], or values [n].
    """

    def __init__(self, student: StudentModel) -> None:
        super().__init__()
        labels = student.info.labels
        self.network: Preprocessed = student.module
        self.kind, self.bounds = labels.kind, labels.bounds

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = self.network(inputs)
        if self.kind == "value":
            low, high = self.bounds
            return low + (outputs[:, 0].clamp(-1, 1) + 1) / 2 * (high - low)
        return outputs.softmax(dim=1) if self.kind == "class" else outputs.sigmoid()


def export(student: StudentModel, folder: Path, form: str, out: Path, inputs: str) -> str:
    """Write the student to ``out`` in the format ``form``; what was checked, in a few words.

    ``folder``: where the student came from, a run folder for huggingface. ``inputs``: what images
    a graph takes, uint8 [n, h, w, c] or float32 [n, c, h, w]. Raises InvalidInput for a student
    that has no such form or a place that can not be written,
    LabelwallError where the exported model's outputs differ from the student's.
    """
    with writing(out) as scratch:
        if form == "timm":
            timm_folder(student, scratch)
            return f"timm's model gives the student's outputs on {CHECKED} rows"
        if form == "huggingface":
            huggingface_folder(student, folder, scratch)
            return "a folder to upload"
        return _onnx(student, example(student, inputs), scratch)


def example(student: StudentModel, inputs: str, count: int = CHECKED) -> torch.Tensor:
    """Rows of noise as a graph takes them: the student's, or of ``inputs`` where it sees images."""
    shape, rng = student.info.input_shape, np.random.default_rng(0)
    if len(shape) == 1:
        return torch.from_numpy(rng.normal(size=(count, *shape)).astype(np.float32))
    images = torch.from_numpy(rng.integers(0, 256, (count, *shape), dtype=np.uint8))
    images[0] = 0  # blank, as corners of scans are
    return images if inputs == "uint8" else unit_scale(images)


def _onnx(student: StudentModel, rows: torch.Tensor, out: Path) -> str:
    """ONNX with any number of rows; its metadata says what the student's file says."""
    answers = AnsweringNetwork(student).eval()
    output = "values" if answers.kind == "value" else "probabilities"
    program = to_onnx(answers, rows, output, dynamic_shapes=({0: torch.export.Dim("rows")},))
    program.model.metadata_props[KEY] = canonical_json(student.info.to_json()).decode()
    for node in program.model.graph:  # the exporter notes the paths of its own code there
        node.metadata_props.clear()
    program.save(out)
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    low, high = answers.bounds or (0.0, 1.0)
    for some in (rows, rows[:3]):  # also another number than the graph was made with
        with torch.inference_mode():
            expected = answers(some).numpy()
        (exported,) = session.run(None, {"inputs": some.numpy()})
        same = exported.shape == expected.shape
        if not same or not np.allclose(exported, expected, rtol=0, atol=TOLERANCE * (high - low)):
            raise LabelwallError("the exported model's outputs differ from the student's.")
    table = student.info.table
    alone = "; of texts it takes the student's vectors" if table and table.text_features else ""
    return f"onnxruntime says what torch says on {len(rows)} rows{alone}"


def timm_folder(student: StudentModel, out: Path) -> None:
    """A folder that `timm.create_model("local-dir:FOLDER", pretrained=True)` loads, and the Hub.

    The model's input is float32 [n, c, h, w], standardised by the mean and std of config.json;
    its outputs are the student's. Raises InvalidInput where the student's network is no timm
    model, or one whose classifier is not a linear layer on its features.
    """
    import timm

    info = student.info
    if not info.backbone.startswith(TIMM):
        raise InvalidInput(
            "format", "onnx or huggingface for a student that is no timm model", "timm"
        )
    name = info.backbone.removeprefix(TIMM)
    channels, outputs = info.input_shape[2], info.labels.outputs
    network: Any = timm.create_model(name, in_chans=channels, num_classes=outputs).eval()
    trunk, head = student.module.network.trunk, student.module.network.head
    last = network.pretrained_cfg.get("classifier")
    state = trunk.state_dict() | {
        f"{last}.{part}": tensor for part, tensor in head.state_dict().items()
    }
    images = example(student, "uint8").numpy()
    refusal = InvalidInput("student", "a timm model with one linear classifier for timm", name)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:  # other names or shapes
        raise refusal from error
    with torch.inference_mode():
        exported = network(Preprocessing(info.mean, info.std)(images)).numpy()
    if not np.allclose(exported, student.outputs(images), rtol=TOLERANCE, atol=TOLERANCE):
        raise refusal
    timm.models.save_for_hf(  # type: ignore[attr-defined]
        network,
        str(out),
        model_config={"label_names": list(info.labels.names), "labelwall": info.to_json()},
        data_config={
            "input_size": (channels, *info.input_shape[:2]),
            "mean": info.mean,
            "std": info.std,
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "crop_mode": "center",
        },
        safe_serialization=True,
    )


def huggingface_folder(student: StudentModel, run_dir: Path, out: Path) -> None:
    """A folder to upload to the Hub: weights, configuration, preprocessing and the model card.

    `labelwall.load("FOLDER")` loads it. Raises MissingData where
    ``run_dir`` is no finished run, which the card is about.
    """
    run = read_run(run_dir)
    out.mkdir()
    (out / "model.safetensors").write_bytes(pack(student.info, student.weights))
    (out / "README.md").write_text(card(run, file="model.safetensors"))
    if (types := run_dir / LABELS).is_file():
        (out / LABELS).write_bytes(types.read_bytes())
    _write(out / "config.json", _config(student.info))
    if len(student.info.input_shape) == 3:
        _write(out / "preprocessor_config.json", _preprocessor(student.info))


def _config(info: StudentInfo) -> dict[str, Any]:
    names = info.labels.names
    problem = {"class": "single_label", "attributes": "multi_label"}.get(info.labels.kind)
    return {
        "model_type": "labelwall",
        "architectures": [info.backbone],
        "problem_type": f"{problem}_classification" if problem else "regression",
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "labelwall": info.to_json(),
    }


def _preprocessor(info: StudentInfo) -> dict[str, Any]:
    """What the public images went through, in the words of Hugging Face's image processors."""
    height, width, channels = info.input_shape
    return {
        "do_convert_rgb": channels == 3,
        "do_resize": True,
        "size": {"shortest_edge": min(height, width)},
        "resample": BILINEAR,
        "do_center_crop": True,
        "crop_size": {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": 1 / LARGEST_PIXEL,
        "do_normalize": True,
        "image_mean": list(info.mean),
        "image_std": list(info.std),
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
