"""Steps and trainings that one process and several must do alike.

As a program, one of several: `-m tests.student.shared_cases` stands in for student.worker, does all
of them, and then the training that it was started for.
"""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import numpy as np
import safetensors.torch
import torch
import torch.distributed as dist

from labelwall.student import module, worker
from labelwall.student.config import StudentConfig
from labelwall.student.data import Pool, Steps
from labelwall.student.fit import TrainedStudent, fit, student_module
from labelwall.student.job import Job
from labelwall.student.module import StudentModule
from labelwall.student.ranks import ALONE, Ranks
from labelwall.wall.labels.attributes import AttributeLabels
from labelwall.wall.labels.classes import ClassLabels
from labelwall.wall.labels.values import ValueLabels
from labelwall.wall.progress import TaskProgress

CLASSES, STEP = 3, 40
TRAINED = ("classes uda", "images vat", "attributes supervised", "values uda", "soft uda")
SCALE = ValueLabels(-6.0, 6.0)
RNG = np.random.default_rng(0)
TRUTH = RNG.integers(0, CLASSES, 120)
VECTORS = (RNG.normal(size=(120, 8)) + 2 * np.eye(CLASSES, 8)[TRUTH]).astype(np.float32)
IMAGES = RNG.integers(0, 256, (120, 14, 14, 3), dtype=np.uint8)
LABELS = np.where(np.arange(120) < 60, TRUTH, -1)
BITS = RNG.integers(-1, 2, (120, 4))
# Of two thirds of the rows, some of them labelled
SOFT = RNG.dirichlet(np.ones(CLASSES), 120).astype(np.float32)
SOFT[::3] = np.nan
VALUES = SCALE.steps(VECTORS[:, 0].astype(np.float64))
POOLS = {
    "classes": (Pool(VECTORS, ClassLabels.of(CLASSES)), LABELS, (VECTORS, TRUTH)),
    "images": (
        Pool(IMAGES, ClassLabels.of(CLASSES), (0.5,) * 3, (0.3,) * 3),
        LABELS,
        (IMAGES, TRUTH),
    ),
    "attributes": (Pool(VECTORS, AttributeLabels.of(4)), BITS, (VECTORS, np.abs(BITS))),
    "soft": (Pool(VECTORS, ClassLabels.of(CLASSES)), LABELS, (VECTORS, TRUTH)),
    "values": (Pool(VECTORS, SCALE), VALUES, (VECTORS, SCALE.decode(VALUES))),
}


def jobs(**changed: object) -> dict[str, Job]:
    """Every kind of student under every objective, with all the terms that are no means over rows.

    Neither two processes nor groups of eight distorted images divide 17 and 25 rows.
    """
    base = {
        "batch_labelled": 17,
        "batch_unlabelled": 25,
        "steps": 100,
        "gce_warm_up": 0.2,
        "uda_confidence": 0.4,
    }
    found = {}
    for objective in ("supervised", "vat", "uda"):
        for kind, (pool, labels, test) in POOLS.items():
            own = {
                "backbone": "small_cnn" if kind == "images" else "mlp",
                "augment": "natural",
                "objective": objective,
            }
            prior = (
                {"class_prior": "uniform", "uda_tsa": "linear"}
                if kind in ("classes", "images", "soft")
                else {}
            )
            config = StudentConfig(**base | own | prior | changed)
            soft = SOFT if kind == "soft" else None
            found[f"{kind} {objective}"] = Job(config, pool, labels, 4, test, soft=soft)
    return found


def step(job: Job, ranks: Ranks = ALONE) -> dict[str, torch.Tensor]:
    """Gradients, averaged over the ranks as data-parallel training does, and buffers after one
    training step in float64."""
    student = student_module(job, ranks).double().train()
    x, y, public = Steps(job.pool, job.labels, job.config, job.seed, STEP, 1, job.soft)[0]
    y = y.double() if y.is_floating_point() else y
    with (
        mock.patch.object(StudentModule, "global_step", STEP),
        mock.patch.object(StudentModule, "log_dict"),
    ):
        student.training_step((x.double(), y, public.double()), 0).backward()
    found = {
        f"buffer {name}": buffer
        for name, buffer in student.network.named_buffers()
        if "num_batches" not in name
    }
    for name, parameter in student.network.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if ranks.size > 1:
            dist.all_reduce(gradient)
        found[name] = gradient / ranks.size
    return found


def everything(job: Job, run_dir: Path, *, progress: TaskProgress, ranks: Ranks) -> TrainedStudent:
    """In place of fit: a file for each rank with what it found in all cases; then the training
    itself."""
    with mock.patch.object(module, "share_norms", lambda network: network):
        found = {"own norms": step(jobs()["images uda"], ranks)}
    found |= {name: step(case, ranks) for name, case in jobs().items()}
    for name in TRAINED:
        trained = fit(jobs(steps=10, devices=ranks.size)[name], run_dir / name, ranks=ranks)
        found[f"trained {name}"] = safetensors.torch.load(trained.weights)
    tensors = {
        f"{case}/{name}": tensor.contiguous()
        for case, tensors in found.items()
        for name, tensor in tensors.items()
    }
    safetensors.torch.save_file(tensors, run_dir / f"rank_{ranks.rank}.safetensors")
    return fit(job, run_dir, progress=progress, ranks=ranks)


if __name__ == "__main__":
    with mock.patch.object(worker, "fit", everything):
        worker.main(sys.argv[1:])
