"""Half precision and a second process: a student's training time and accuracy.

A few hundred labels of mnist5k as in student_objectives.py. Variants take turns, so that a busy
machine slows all of them alike: compare the ratios. A step's time is the median over all
repetitions; the total seconds include starting and compiling the network. Each repetition has its
own seed: one seed's accuracy changes by points with the order of sums. VAT runs in float32 only,
and the last line shows why: the direction that bfloat16 finds, against float32's.

    python benchmarks/student_speed.py [--steps 100] [--repetitions 3] [--threads 1]
        [--objectives supervised uda vat]
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from student_objectives import FIRST_SEED, Split, released

from labelwall.student import losses
from labelwall.student.config import StudentConfig
from labelwall.student.data import Pool
from labelwall.student.module import VAT_XI, StudentModule, exact
from labelwall.student.train import TrainedStudent, predict, train
from labelwall.wall.label_kinds import ClassLabels
from labelwall.wall.networks import load
from labelwall.wall.preprocessing import Preprocessing

DIGITS = ClassLabels.of(10)
VARIANTS: dict[str, dict[str, object]] = {
    "float32": {},
    "bf16-mixed": {"precision": "bf16-mixed"},
    "float32, 2 processes": {"devices": 2},
}


@dataclass
class Reading:
    """One variant: seconds of each training and of all steps but its first ten, accuracies."""

    seconds: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)


@contextmanager
def noted(times: list[float]) -> Iterator[None]:
    """Append the time at which each step of a training in this process begins."""
    original = StudentModule.training_step

    def timed(
        self: StudentModule, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor], index: int
    ) -> torch.Tensor:
        times.append(time.perf_counter())
        return original(self, batch, index)

    StudentModule.training_step = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        StudentModule.training_step = original  # type: ignore[method-assign]


def pool_of(split: Split) -> Pool:
    images = split[0]
    statistics = Preprocessing.of_public(images)
    return Pool(images, DIGITS, statistics.mean, statistics.std)


def trained(config: StudentConfig, split: Split, seed: int) -> TrainedStudent:
    with tempfile.TemporaryDirectory() as folder:
        return train(config, pool_of(split), split[1], run_dir=Path(folder), seed=seed)


def read(config: StudentConfig, split: Split, seed: int, reading: Reading) -> None:
    """One more training of a variant."""
    times: list[float] = []
    started = time.perf_counter()
    with noted(times):
        student = trained(config, split, seed)
    reading.seconds.append(time.perf_counter() - started)
    reading.steps += np.diff(times)[10:].tolist()
    spec = pool_of(split).spec(config.backbone, student.weights)
    reading.accuracies.append(float((predict(spec, split[3], DIGITS) == split[4]).mean()))


def variants(base: StudentConfig) -> dict[str, StudentConfig]:
    """The variants that the configuration's rules allow."""
    half_precision_is_refused = base.objective == "vat"
    return {
        name: replace(base, **changed)  # type: ignore[arg-type]
        for name, changed in VARIANTS.items()
        if not (half_precision_is_refused and "precision" in changed)
    }


def table(base: StudentConfig, split: Split, repetitions: int) -> str:
    """Markdown: a row a variant. Ratios are to float32.

    Two processes are timed by whole trainings alone.
    """
    configs = variants(base)
    readings = {name: Reading() for name in configs}
    for seed in range(FIRST_SEED, FIRST_SEED + repetitions):
        for name, config in configs.items():
            read(config, split, seed, readings[name])
    lines = [
        "| " + base.objective + " | ms a step | ratio | seconds in all | test accuracy |",
        "|---|---|---|---|---|",
    ]
    plain = statistics.median(readings["float32"].steps)
    for name, reading in readings.items():
        step = statistics.median(reading.steps) if reading.steps else None
        shown = ("-", "-") if step is None else (f"{1000 * step:.1f}", f"{step / plain:.2f}")
        seconds = statistics.median(reading.seconds)
        right = [100 * accuracy for accuracy in sorted(reading.accuracies)]
        accuracy = f"{statistics.median(right):.1f}% ({right[0]:.1f} to {right[-1]:.1f})"
        lines.append(f"| {name} | {shown[0]} | {shown[1]} | {seconds:.1f} | {accuracy} |")
    return "\n".join(lines)


def cosines(base: StudentConfig, split: Split) -> np.ndarray:
    """Cosines of VAT's directions in float32 and under bf16 products: float32 [n].

    On a trained student's batch.
    """
    pool = pool_of(split)
    network = load(
        pool.spec(base.backbone, trained(replace(base, objective="vat"), split, FIRST_SEED).weights)
    )
    x = Preprocessing(pool.mean, pool.std)(split[0][: base.batch_unlabelled])
    start = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    start = start / start.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    found = []
    for half in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            moved = start.clone().requires_grad_()
            divergence = losses.kl_divergence(exact(network(x)), exact(network(x + VAT_XI * moved)))
            (gradient,) = torch.autograd.grad(divergence, moved)
        found.append(gradient.flatten(1).numpy())
    return cosine(*found)


def cosine(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Cosine of the angle between rows: float [n] for two arrays [n, d]."""
    return (one * other).sum(axis=1) / np.maximum(
        np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1), 1e-30
    )


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--backbone", default="small_cnn")
    parser.add_argument("--objectives", nargs="+", default=["supervised", "uda", "vat"])
    options = parser.parse_args(args)
    torch.set_num_threads(options.threads)
    split = released(FIRST_SEED)
    base = StudentConfig(
        steps=options.steps, backbone=options.backbone, class_prior="uniform", entropy_weight=1.0
    )
    for objective in options.objectives:
        print(
            table(replace(base, objective=objective), split, options.repetitions) + "\n", flush=True
        )
    if "vat" in options.objectives:
        found = cosines(base, split)
        print(
            "cosine of VAT's directions, bf16 against float32: "
            f"median {np.median(found):.2f}, least {found.min():.2f}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
