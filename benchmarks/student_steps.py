"""Settings of a student on the labels of a finished run of MNIST: accuracy and CPU seconds.

Each round's labels, as its student learned them, train students of several seeds by each of the
settings. They are scored on the second half of MNIST's test images, which no run here reads. A
setting is a YAML mapping that changes the run's `student`; `{}` is the run's own.

    python benchmarks/student_steps.py --run runs/demo --root ROOT [--seeds 5] [--rounds 1 2]
        --settings '{}' '{steps: 800, batch_unlabelled: 96, learning_rate: 3.0e-3}'
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import yaml
from torchvision.datasets import MNIST

from labelwall.experiment.config.settings import load_config
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.student.config import StudentConfig
from labelwall.student.data import Pool
from labelwall.student.train import predict, train
from labelwall.wall.datasets.sources import read_public
from labelwall.wall.label_kinds import ClassLabels
from labelwall.wall.preprocessing import Preprocessing

TEST = slice(5_000, None)


def read(
    config: StudentConfig, pool: Pool, labels: np.ndarray, test: MNIST, seed: int
) -> tuple[float, float]:
    """(share of test images that a student has right, CPU seconds of its training)."""
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        trained = train(config, pool, labels, run_dir=Path(folder), seed=seed)
    seconds = time.process_time() - started
    images = test.data.numpy()[TEST, ..., np.newaxis]
    found = predict(pool.spec(config.backbone, trained.weights), images, pool.labels)
    return float((found == test.targets.numpy()[TEST]).mean()), seconds


def main() -> None:
    """Print a Markdown table, a row for each round and setting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--settings", nargs="+", default=["{}"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    config, test = load_config(options.run / "config.yaml"), MNIST(options.root, train=False)
    inputs = read_public(config.data).inputs
    statistics = Preprocessing.of_public(inputs)
    pool = Pool(inputs, ClassLabels.of(10), statistics.mean, statistics.std)
    print("| round | settings | mean accuracy (range) | CPU seconds |\n|---|---|---|---|")
    for number in options.rounds:
        labels = RunFolder(options.run).load_training_labels(number)
        assert labels is not None
        for text in options.settings:
            changed = replace(config.student, **yaml.safe_load(text))
            seen = [read(changed, pool, labels, test, 1 + s) for s in range(options.seeds)]
            right, seconds = zip(*seen, strict=True)
            print(
                f"| {number} | {text} | {100 * statistics.mean(right):.2f}% "
                f"({100 * min(right):.2f} to {100 * max(right):.2f}) "
                f"| {statistics.mean(seconds):.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
