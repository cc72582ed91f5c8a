"""`labelwall classify`: a student's answers about new images or vectors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        "labelwall classify",
        description="Write a student's label and probabilities for each image or vector to a CSV "
        "file. Opens nothing private; costs no privacy.",
    )
    parser.add_argument(
        "--student",
        type=Path,
        required=True,
        help="folder of a finished run, or its student.safetensors",
    )
    rows = parser.add_mutually_exclusive_group(required=True)
    rows.add_argument(
        "--images",
        type=Path,
        nargs="+",
        help="image files, or folders of them; cut, resized and converted as the public ones were",
    )
    rows.add_argument(
        "--vectors",
        type=Path,
        help="npy file, or npz file with the array x: vectors [n, d], or images uint8 [n, h, w, c]"
        "; for a student of a table a CSV or parquet file with that table's columns",
    )
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    parser.add_argument("--quiet", action="store_true", help="print nothing but the result")
    options = parser.parse_args(args)
    from ...student.model import load
    from ..run.console import Console
    from ..use.classify import classify_images, classify_rows

    student, console = load(options.student), Console(quiet=options.quiet)
    if options.images:
        classified = classify_images(student, options.images, options.out, console.progress)
    else:
        classified = classify_rows(student, options.vectors, options.out, console.progress)
    for name in classified.unreadable:
        print(f"labelwall: not a readable image, left without a label: {name}", file=sys.stderr)
    print(f"{classified.rows} labelled, {len(classified.unreadable)} unreadable: {options.out}")
    return 0
