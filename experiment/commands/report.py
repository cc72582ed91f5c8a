"""`labelwall report`: a run folder's report.html, written again."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def main(args: Sequence[str]) -> int:
    from labelwall.experiment.report.report import write_report

    parser = argparse.ArgumentParser(
        "labelwall report", description="Write report.html of a finished run folder again."
    )
    parser.add_argument("run_dir", type=Path, help="a folder that `labelwall run` wrote")
    print(write_report(parser.parse_args(args).run_dir))
    return 0
