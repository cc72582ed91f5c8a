"""Vectors around the PUBLIC ones, labelled by a round's linear classifier: post-processing, free.

The labels of few rows do not tell a student all that their classifier knows. It says as much of any
vector, so that a student of vectors trains on virtual ones, too: public rows, each moved by a part
of the difference of two others.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import safetensors
from scipy.special import softmax

from .asking import asking_extractor
from .experiment import Experiment
from .linear_round import CLASSIFIER
from .training_rows import TrainingRows

ROWS = 20_000
MAX_ENTRIES = 10_000_000  # of the virtual rows: float32


def with_virtual_rows(
    experiment: Experiment,
    number: int,
    training_rows: TrainingRows,
    labels: np.ndarray,
    soft: np.ndarray | None,
) -> tuple[TrainingRows, np.ndarray, np.ndarray | None]:
    """A round's rows, ``labels`` and probabilities, with those of virtual rows after them.

    They stay as they are where the student sees images or learns no probabilities, and where the
    round left no classifier of classes. A resumed run finds the same rows.
    """
    path = experiment.folder.round(number) / CLASSIFIER
    public = training_rows.pool.inputs
    if soft is None or not experiment.config.student.soft or public.ndim != 2:
        return training_rows, labels, soft
    if not path.exists():
        return training_rows, labels, soft
    rows = moved(public, experiment.config.seed * 1000 + number)
    features, finite = training_rows.embed(asking_extractor(experiment, number), rows)
    rows, said = rows[finite], probabilities(path, features[finite])
    taught = replace(
        training_rows, pool=replace(training_rows.pool, inputs=np.concatenate([public, rows]))
    )
    labels = np.concatenate([labels, said.argmax(axis=1)])
    return taught, labels, np.concatenate([soft, said])


def moved(rows: np.ndarray, seed: int) -> np.ndarray:
    """Some of the rows, float32 [n, d], each with up to the difference of two others added."""
    count = min(ROWS, MAX_ENTRIES // rows.shape[1])
    random = np.random.default_rng(seed)
    at, to, by = random.integers(0, len(rows), (3, count))
    part = random.random((count, 1), dtype=np.float32)
    found: np.ndarray = (rows[at] + part * (rows[to] - rows[by])).astype(np.float32)
    return found


def probabilities(path: Path, features: np.ndarray) -> np.ndarray:
    """What a stored classifier of classes says of int8 [n, d]: float32 [n, c]."""
    with safetensors.safe_open(path, "numpy") as file:
        weights, bias = file.get_tensor("weights").astype(np.float64), file.metadata()["bias"]
    logits = features @ weights[:-1] + float(bias) * weights[-1]
    found: np.ndarray = softmax(logits, axis=1).astype(np.float32)
    return found
