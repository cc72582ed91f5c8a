"""What protecting persons costs and brings: accuracy at equal epsilon, persons of 10 rows each.

    python benchmarks/persons.py --data ../shared/data --seeds 0 1 2

Private rows are MNIST's training images (the first --rows) as HOG vectors, in persons of 10 rows
that are near each other (person_search.py, ``alike``): what one person writes repeats itself.
Public rows are the first 5,000 test images, and the other 5,000 measure the student. delta = 1e-5.

- row: epsilon for one row; a person has what group privacy leaves, about 10 epsilon;
- group: epsilon for a person by group privacy: rows at epsilon / 10, delta / (10 e^(0.9 epsilon));
- person: epsilon for a person, `privacy.unit: person`;
- NoisySGD: a linear model of the same vectors, one averaged gradient a person, clipped and noisy
  through Opacus (its own accountant's claim; its learning rate is not tuned).

Every seed draws noise, queries and training anew. Prints one table.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from person_search import SIZE, alike

DELTA, CLASSES, PUBLIC = 1e-5, 10, 5000
STEPS = 300  # of NoisySGD
RATE, LEARNING_RATE, CLIP = 0.1, 2.0, 1.0
MECHANISMS = {
    "reverse_knn": {"kind": "reverse_knn", "cells": 150},
    "private_linear": {"kind": "private_linear"},
    "private_knn": {"kind": "private_knn", "k": 60, "threshold": 30, "sampling_probability": 0.2},
}
CONFIG = {
    "features": "raw",
    "student": {
        "backbone": "mlp",
        "objective": "supervised",
        "steps": 300,
        "prune_folds": 2,
        "prune_steps": 50,
    },
    "threads": 1,
    "workers": 1,
}


def hog_vectors(data: str, rows: int) -> tuple[np.ndarray, ...]:
    """(private x, y, public x, y, test x, y): float32 [n, 1296] and int64 [n]."""
    from torchvision.datasets import MNIST

    from labelwall.teacher.features.embedder import Embedder
    from labelwall.wall.messages import ExtractorSpec

    hog = Embedder(ExtractorSpec("hog", (28, 28, 1), CLASSES), probe=None, workers=2)
    found = []
    for train, part in ((True, slice(rows)), (False, slice(PUBLIC)), (False, slice(PUBLIC, None))):
        held = MNIST(data, train=train)
        vectors, _ = hog.embed(held.data.numpy()[part][..., None])
        found += [vectors.astype(np.float32), held.targets.numpy()[part]]
    return tuple(found)


def budgets(epsilon: float) -> Iterator[tuple[str, dict[str, object], dict[str, object]]]:
    """(name, budget, privacy) of each way to spend epsilon."""
    shared = {"epsilon": epsilon / SIZE, "delta": DELTA / (SIZE * math.exp(0.9 * epsilon))}
    yield "row", {"epsilon": epsilon, "delta": DELTA}, {"unit": "row"}
    yield "group", shared, {"unit": "row"}
    yield "person", {"epsilon": epsilon, "delta": DELTA}, {"unit": "person"}


def answered(place: Path, npz: Path, seed: int, mechanism: dict, **settings: object) -> dict:
    """The summary of one run."""
    import yaml

    from labelwall import pipeline

    asked = {"queries": 1000} if mechanism["kind"] == "private_knn" else {}
    config = {
        "data": {"source": "arrays", "path": str(npz)},
        "rounds": [asked],
        "mechanism": mechanism,
        "seed": seed,
        **CONFIG,
        **settings,
    }
    place.mkdir(parents=True)
    (place / "config.yaml").write_text(yaml.safe_dump(config))
    code = pipeline.main(
        ["run", "--config", str(place / "config.yaml"), "--run_dir", str(place / "run")]
    )
    assert code == 0, f"a run failed with exit code {code}"
    found: dict = json.loads((place / "run" / "summary.json").read_text())
    return found


def noisy_sgd(
    rows: tuple[np.ndarray, ...], persons: np.ndarray, epsilon: float, seed: int
) -> float:
    """Test accuracy of a linear model by one clipped average gradient a person."""
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    from labelwall.teacher.baselines.noisy_sgd import calibrate

    x, y, *_, test_x, test_y = rows
    order = np.argsort(persons, kind="stable")[: len(persons) // SIZE * SIZE]
    scale = float(np.linalg.norm(rows[2], axis=1).mean())  # of public rows
    inputs = torch.from_numpy(x[order].reshape(-1, SIZE, x.shape[1]) / scale)
    labels = torch.from_numpy(y[order].reshape(-1, SIZE))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        multiplier, *_ = calibrate(epsilon, DELTA, RATE, STEPS)
        torch.manual_seed(seed)
        wrapped = GradSampleModule(torch.nn.Linear(x.shape[1], CLASSES))
        plain = torch.optim.SGD(wrapped.parameters(), lr=LEARNING_RATE, momentum=0.9)
        expected = int(RATE * len(labels))
        optimizer = DPOptimizer(
            plain, noise_multiplier=multiplier, max_grad_norm=CLIP, expected_batch_size=expected
        )
        for _ in range(STEPS):
            chosen = torch.nonzero(torch.rand(len(labels)) < RATE).squeeze(1)
            said = wrapped(inputs[chosen])  # [persons, SIZE, classes]
            each = torch.nn.functional.cross_entropy(
                said.flatten(0, 1), labels[chosen].flatten(), reduction="none"
            )
            each.reshape(-1, SIZE).mean(dim=1).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        model = wrapped.to_standard_module()
        with torch.no_grad():
            found = model(torch.from_numpy(test_x / scale)).argmax(dim=1).numpy()
    return float((found == test_y).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder with MNIST in torchvision's layout")
    parser.add_argument("--rows", type=int, default=60_000, help="private rows, a count")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--mechanisms", nargs="+", default=list(MECHANISMS))
    options = parser.parse_args()
    rows = hog_vectors(options.data, options.rows)
    persons = alike(rows[0].astype(np.int8))
    names = ("private_x", "private_y", "public_x", "public_y", "test_x", "test_y")
    found: dict[tuple[float, str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        npz = Path(folder) / "data.npz"
        np.savez(npz, **dict(zip(names, rows, strict=True)), private_person=persons)
        for epsilon in options.epsilons:
            for seed in options.seeds:
                for name in options.mechanisms:
                    for way, budget, privacy in budgets(epsilon):
                        place = Path(folder) / f"{epsilon}-{seed}-{name}-{way}"
                        summary = answered(
                            place, npz, seed, MECHANISMS[name], budget=budget, privacy=privacy
                        )
                        accuracy = summary["test_accuracy"]
                        found.setdefault((epsilon, name, way), []).append(accuracy)
                accuracy = noisy_sgd(rows, persons, epsilon, seed)
                found.setdefault((epsilon, "NoisySGD", "person (claimed)"), []).append(accuracy)
    print("| epsilon | mechanism | for | test accuracy, median (range) |\n|---|---|---|---|")
    for (epsilon, name, way), each in found.items():
        spread = f"{100 * min(each):.1f} to {100 * max(each):.1f}"
        print(f"| {epsilon:g} | {name} | {way} | {100 * np.median(each):.1f}% ({spread}) |")


if __name__ == "__main__":
    main()
