"""An analyst's two runs in a process of their own: by a service's URL on a tape, in the folder
ANALYST, then with a teacher of its own (`--isolate`), in the folder WHOLE. Prints, as JSON, which
forbidden paths the process opened.

    python analyst_run.py URL ANALYST WHOLE FORBIDDEN...
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from tests.programs import watched


def main(url: str, analyst: Path, whole: Path, paths: list[str], forbidden: list[str]) -> None:
    from labelwall import pipeline
    from labelwall.experiment.config.settings import load_config
    from labelwall.experiment.whole_run import run
    from labelwall.wall.console import Console
    from tests.seeded_noise import SeededNoise

    os.chdir(analyst)
    config = load_config(Path("config.yaml"))
    run(
        replace(config, teacher=url),
        Path("remote"),
        entropy=SeededNoise(1),
        console=Console(quiet=True),
    )
    os.chdir(whole)
    status = pipeline.main(
        ["run", "--config", "config.yaml", "--run_dir", "isolated", "--isolate", "--quiet"]
    )
    seen = [path for path in paths for place in forbidden if Path(path).is_relative_to(place)]
    print(json.dumps({"status": status, "opened": len(paths), "seen": seen}))


if __name__ == "__main__":
    with watched.recorded() as opened:  # before anything else is loaded
        main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), opened, sys.argv[4:])
