"""`labelwall report`: a run folder's report.html and MODEL_CARD.md, written again."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def main(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        "labelwall report",
        description="Write report.html and MODEL_CARD.md of a finished run folder again.",
    )
    parser.add_argument("run_dir", type=Path, help="a folder that `labelwall run` wrote")
    run_dir = parser.parse_args(args).run_dir
    from ..report.card import write_card
    from ..report.report import write_report

    print(write_report(run_dir))
    print(write_card(run_dir))
    return 0
