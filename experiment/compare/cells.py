"""Cells without a run: privately trained baselines, and references without privacy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...student.data import Pool
from ...student.train import predict, train
from ...teacher.accounting.conversion import round_up
from ...teacher.baselines.config import AnyBaseline, LinearNoisySgd, NoisySgd
from ...teacher.baselines.noisy_sgd import PrivateModel, train_privately
from ...teacher.baselines.private_classifiers import PrivateClassifier, fit_privately
from ...teacher.features.cache import embed_records
from ...teacher.features.embedder import Embedder
from ...teacher.records.sources import open_records
from ...wall.datasets.config import PublicData, Task
from ...wall.datasets.sources import describe, read_public
from ...wall.errors import InvalidInput
from ...wall.messages import ExtractorSpec
from ...wall.preprocessing import Preprocessing
from ..config.groups import Computing, FirstFeatures
from ..run.console import Console
from ..run.features import embedder_of, starting_extractor
from .config import CompareConfig

UNIT = 63.0  # quantised features are integers in -63..63


@dataclass(frozen=True)
class Rows:
    """What a baseline is trained on and judged by, as its model takes it.

    ``inputs``, ``labels``: PRIVATE. ``tests``: inputs of the test split.
    """

    inputs: torch.Tensor = field(repr=False)
    labels: torch.Tensor = field(repr=False)
    tests: torch.Tensor = field(repr=False)


def baseline_result(
    config: CompareConfig,
    baseline: AnyBaseline,
    epsilon: float,
    seed: int,
    directory: Path,
    console: Console,
) -> dict[str, Any]:
    """A model trained privately on the records, judged on the public test split.

    ``directory``: the custodian's, for caches. ``claim`` says whose epsilon it is: the ledger
    certifies none of them. diffprivlib's classifiers have no seed.
    """
    task, public = describe(config.data), read_public(config.data)
    if isinstance(baseline, NoisySgd):
        rows = _pixels(config, task, public)
    else:
        rows = _features(config, task, public, directory, console)
    facts: dict[str, Any] = {}
    model: PrivateModel | PrivateClassifier
    if isinstance(baseline, NoisySgd | LinearNoisySgd):
        model = train_privately(
            baseline,
            rows.inputs,
            rows.labels,
            num_classes=task.num_classes,
            epsilon=epsilon,
            delta=config.delta,
            seed=seed,
            progress=lambda done, total: console.progress("training privately", done, total),
        )
        predicted = model.predict(rows.tests)
        facts = {
            "epsilon_rdp": round_up(model.epsilon_rdp),
            "noise_multiplier": model.noise_multiplier,
        }
    else:
        inputs, tests = (tensor.numpy().astype(np.float64) for tensor in (rows.inputs, rows.tests))
        model = fit_privately(
            baseline, inputs, rows.labels.numpy(), num_classes=task.num_classes, epsilon=epsilon
        )
        predicted = model.predict(tests)
    return {
        "epsilon": round_up(model.epsilon),
        "claim": model.claim,
        **facts,
        "accuracy": float((predicted == public.test_labels).mean()),
        "labels": None,
        "label_accuracy": None,
    }


def reference_result(
    config: CompareConfig, private: bool, seed: int, folder: Path
) -> dict[str, Any]:
    """A student without privacy.

    It is trained on all private rows and labels where ``private`` is set, otherwise on the public
    rows' true labels.
    """
    task, public = describe(config.data), read_public(config.data)
    if private:
        records = open_records(config.data, task, unit=config.privacy.unit)
        inputs, codes = records.inputs, records.labels
    elif public.labels is None:
        raise InvalidInput(
            "methods.reference", "non_private where the public rows have no labels", "true_labels"
        )
    else:
        inputs, codes = public.inputs, task.labels.encode("public_y", public.labels)
    labels = task.labels.expand(codes)
    statistics = Preprocessing.of_public(public.inputs)
    pool = Pool(inputs, task.labels, statistics.mean, statistics.std)
    trained = train(config.student, pool, labels, run_dir=folder, seed=seed)
    spec = pool.spec(config.student.backbone, trained.weights)
    score = task.labels.score(predict(spec, public.test_inputs, task.labels), public.test_labels)
    return {
        "epsilon": None,
        "labels": None if private else len(labels),
        "label_accuracy": None if score["accuracy"] is None else 1.0,
        **score,
    }


def _pixels(config: CompareConfig, task: Task, public: PublicData) -> Rows:
    """Images, standardised by statistics of the public rows."""
    if len(task.input_shape) != 3:
        raise InvalidInput("baseline.kind", "another baseline for feature vectors", "noisy_sgd")
    preprocess = Preprocessing.of_public(public.inputs)
    records = open_records(config.data, task)
    inputs, tests = (preprocess(rows) for rows in (records.inputs, public.test_inputs))
    return Rows(inputs, torch.from_numpy(records.labels), tests)


def _features(
    config: CompareConfig, task: Task, public: PublicData, directory: Path, console: Console
) -> Rows:
    """The first round's features; the records' come from the cache that all cells share."""
    computing = Computing(config.batch_size, config.workers)

    def plain(spec: ExtractorSpec) -> np.ndarray:
        return embedder_of(computing, spec, public.inputs).features(public.inputs)

    first = FirstFeatures(config.features, config.weights, config.box, config.whiten)
    spec = starting_extractor(first, task, plain)
    embedder = Embedder(
        spec, probe=public.inputs[:64], batch_size=config.batch_size, workers=config.workers
    )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def progress(done: int, total: int) -> None:
        console.progress("embedding private records (percent)", 100 * done // max(1, total), 100)

    records = open_records(config.data, task)
    features, rows = embed_records(directory, records, spec, embedder, progress)
    tests, _ = embedder.embed(public.test_inputs)
    return Rows(_unit(features), torch.from_numpy(rows.labels), _unit(tests))


def _unit(features: np.ndarray) -> torch.Tensor:
    """float32 [n, d] with entries in -1..1."""
    return torch.from_numpy(features.astype(np.float32) / np.float32(UNIT))
