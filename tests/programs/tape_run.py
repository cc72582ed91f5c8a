"""A run on the unsafe tape in each folder, each in a fork of its own, with the clock, the process
number and the data set's name held still: python tape_run.py SEED FOLDER..."""

import os
import sys
import time
import uuid
from pathlib import Path

import torch

from labelwall.experiment.config.settings import load_config
from labelwall.experiment.report.report import write_report
from labelwall.experiment.whole_run import run
from labelwall.wall.console import Console
from tests.seeded_noise import SeededNoise


def main(seed: int, folder: str) -> None:
    os.chdir(folder)
    config = load_config(Path("config.yaml"))
    moment = 1.7e9
    time.time = lambda: moment
    time.perf_counter = lambda: moment
    time.monotonic = lambda: moment
    os.getpid = lambda: 1
    uuid.uuid4 = lambda: uuid.UUID(int=0)
    run(config, Path("out"), entropy=SeededNoise(seed), console=Console(quiet=True))
    write_report(Path("out"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for place in sys.argv[2:]:
        process = os.fork()
        if process == 0:
            main(int(sys.argv[1]), place)
            sys.exit()
        if os.waitpid(process, 0)[1]:
            sys.exit(f"the run in {place} failed")
