"""Folders in the Hugging Face Hub's layout: timm's models, and labelwall's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...student.model import StudentModel
from ...student.student_file import StudentInfo, pack
from ...wall.errors import InvalidInput
from ...wall.networks.architectures import TIMM
from ...wall.preprocessing import LARGEST_PIXEL, Preprocessing
from ..report.card import card
from ..report.report import read_run

BILINEAR = 2  # Pillow's number of it
CHECKED, TOLERANCE = 8, 1e-4


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
            "format", "onnx, torchscript or huggingface for a student that is no timm model", "timm"
        )
    name = info.backbone.removeprefix(TIMM)
    channels, outputs = info.input_shape[2], info.labels.outputs
    network: Any = timm.create_model(name, in_chans=channels, num_classes=outputs).eval()
    trunk, head = student.module.network.trunk, student.module.network.head
    last = network.pretrained_cfg.get("classifier")
    state = trunk.state_dict() | {
        f"{last}.{part}": tensor for part, tensor in head.state_dict().items()
    }
    images = np.random.default_rng(0).integers(0, 256, (CHECKED, *info.input_shape), np.uint8)
    refusal = InvalidInput("student", "a timm model with one linear classifier for timm", name)
    if {key: t.shape for key, t in state.items()} != {
        key: t.shape for key, t in network.state_dict().items()
    }:
        raise refusal
    network.load_state_dict(state)
    with torch.inference_mode():
        found = network(Preprocessing(info.mean, info.std)(images)).numpy()
    if not np.allclose(found, student.outputs(images), rtol=TOLERANCE, atol=TOLERANCE):
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

    `labelwall.student.model.load("FOLDER/model.safetensors")` loads it. Raises MissingData where
    ``run_dir`` is no finished run, which the card is about.
    """
    run = read_run(run_dir)
    out.mkdir()
    (out / "model.safetensors").write_bytes(pack(student.info, student.weights))
    (out / "README.md").write_text(card(run, file="model.safetensors"))
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
