"""A training as one message: all that the processes of a training are given.

What is not in it, they do not have.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import BinaryIO

import numpy as np
import safetensors.numpy

from ..wall.labels.registry import label_space
from .config import StudentConfig
from .data import Pool


@dataclass(frozen=True)
class Job:
    """Arguments of a training, as for student.train.train.

    ``labels``: int64 [n] or [n, c], -1 where none was released; ``test``: labelled rows for
    reported metrics alone, int64 or of values float64; ``initial``: weights to begin with,
    safetensors, None for fresh ones; ``soft``: released probabilities, float32 [n, c], None where
    nothing but labels was released.
    """

    config: StudentConfig
    pool: Pool
    labels: np.ndarray = field(repr=False)
    seed: int
    test: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)
    initial: bytes | None = field(default=None, repr=False)
    soft: np.ndarray | None = field(default=None, repr=False)


def write_job(job: Job) -> bytes:
    """One line of JSON, then safetensors with the arrays."""
    pool = job.pool
    arrays = {"inputs": pool.inputs, "labels": job.labels}
    if job.test is not None:
        arrays |= dict(zip(("test_x", "test_y"), job.test, strict=True))
    if job.soft is not None:
        arrays["soft"] = job.soft
    if job.initial is not None:
        arrays["initial"] = np.frombuffer(job.initial, dtype=np.uint8)
    body = safetensors.numpy.save(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    )
    fields = {
        "config": asdict(job.config),
        "pool": {
            "mean": pool.mean,
            "std": pool.std,
        },
        "labels": pool.labels.fields(),
        "seed": job.seed,
        "bytes": len(body),
    }
    return json.dumps(fields).encode() + b"\n" + body


def read_job(stream: BinaryIO) -> Job:
    """The job that ``write_job`` wrote; leaves the stream open behind it."""
    fields = json.loads(stream.readline())
    arrays = safetensors.numpy.load(stream.read(fields["bytes"]))
    mean, std = (tuple(fields["pool"][name]) for name in ("mean", "std"))
    return Job(
        StudentConfig(**fields["config"]),
        Pool(arrays["inputs"], label_space(**fields["labels"]), mean, std),
        arrays["labels"],
        fields["seed"],
        (arrays["test_x"], arrays["test_y"]) if "test_x" in arrays else None,
        arrays["initial"].tobytes() if "initial" in arrays else None,
        arrays.get("soft"),
    )
