"""`labelwall init`: a configuration for image folders, or a copy of a packaged one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def main(args: Sequence[str]) -> int:
    from labelwall.experiment.config.init import init, packaged_configs

    parser = argparse.ArgumentParser(
        "labelwall init",
        description="Write a configuration for your own image folders (--private, --public, "
        "--test), or a copy of a packaged one (--from).",
    )
    parser.add_argument(
        "--from",
        dest="name",
        metavar="NAME",
        help=f"copy a packaged configuration: {', '.join(packaged_configs())}",
    )
    parser.add_argument(
        "--private",
        type=Path,
        help="folder with one folder of images a class; not opened by this command",
    )
    parser.add_argument(
        "--public", type=Path, help="folder of unlabelled images (class folders are allowed)"
    )
    parser.add_argument("--test", type=Path, help="public folder with one folder of images a class")
    parser.add_argument("--out", type=Path, default=Path("labelwall.yaml"), help="file to write")
    options = parser.parse_args(args)
    out, folders = options.out, (options.private, options.public, options.test)
    print(f"wrote {out}. Next: {init(out, options.name, *folders)}")
    return 0
