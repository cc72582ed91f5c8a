"""`labelwall compare`: several methods on the same split, students and budgets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def main(args: Sequence[str]) -> int:
    from ..compare.config import parse_comparison
    from ..run.console import Console

    config, out = parse_comparison(args)

    import torch

    torch.set_num_threads(config.threads)
    from ...teacher.noise.entropy import SystemEntropy
    from ..compare.compare import compare, render

    print(render(compare(config, Path(out), entropy=SystemEntropy(), console=Console())))
    return 0
