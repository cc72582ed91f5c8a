"""`labelwall export`: a student in other programs' formats."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

FORMATS = {
    "onnx": "one file, checked by onnxruntime where it is installed (extra `export`)",
    "timm": "a folder for timm.create_model('local-dir:FOLDER', pretrained=True)",
    "huggingface": "a folder in the Hub's layout, with the model card; needs the run folder",
}


def main(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        "labelwall export",
        description="Write a student in another format. ONNX has the preprocessing inside and "
        "gives probabilities, or values. Opens nothing private; costs no privacy.",
    )
    parser.add_argument(
        "--student",
        type=Path,
        required=True,
        help="folder of a finished run, or its student.safetensors",
    )
    parser.add_argument(
        "--format",
        required=True,
        help="; ".join(f"{name}: {what}" for name, what in FORMATS.items()),
    )
    parser.add_argument("--out", type=Path, required=True, help="file or folder to write")
    parser.add_argument(
        "--input",
        choices=["uint8", "float32"],
        default="uint8",
        help="images that onnx takes: uint8 [n, h, w, c] of 0..255, "
        "or float32 [n, c, h, w] of 0..1; of the student's size",
    )
    options = parser.parse_args(args)
    from ...wall.errors import InvalidInput

    if options.format not in FORMATS:
        raise InvalidInput("format", f"one of {', '.join(FORMATS)}", options.format)
    from ...student.model import load
    from ..use.export import export

    student, source = load(options.student), options.student
    folder = source if source.is_dir() else source.parent
    checked = export(student, folder, options.format, options.out, options.input)
    print(f"{options.out}: {checked}")
    return 0
