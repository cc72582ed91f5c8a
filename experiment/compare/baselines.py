"""A comparison's models that are trained privately on the records themselves, and on PUBLIC rows
to choose their settings.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from ...student.asking.features import PublicFeatures, first_extractor, whitened
from ...student.settings import PublicSide
from ...teacher.accounting.conversion import round_up
from ...teacher.baselines.config import AnyBaseline, GradientDescent, LinearNoisySgd, NoisySgd
from ...teacher.baselines.noisy_sgd import PrivateModel, train_privately
from ...teacher.baselines.private_classifiers import PrivateClassifier, fit_privately
from ...teacher.custody.groups import BudgetConfig
from ...teacher.records.sources import open_records
from ...wall.console import Console
from ...wall.datasets.config import PublicData
from ...wall.datasets.sources import describe
from ...wall.errors import InvalidInput
from ...wall.features.embedder import Embedder
from ...wall.matrices import MAX_ENTRY
from ...wall.preprocessing import Preprocessing
from ...wall.progress import no_progress
from ..config.own import MIN_ROWS
from ..plan.rehearsal import MAX_LABELLED, labelled_rows
from ..plan.search import by_features

RATES = (0.25, 1.0, 4.0)  # of the default learning rate, that are rehearsed
# Inputs of a model, and which of the rows are finite
Inputs = Callable[[np.ndarray], tuple[torch.Tensor, np.ndarray]]


def trained(
    settings: PublicSide,
    budget: BudgetConfig,
    baseline: AnyBaseline,
    public: PublicData,
    console: Console,
) -> dict[str, Any]:
    """A model trained privately on the records, judged on the public test split.

    ``claim`` says whose epsilon it is: the ledger certifies none of them. diffprivlib's classifiers
    have no seed.
    """
    task, inputs = describe(settings.data), _inputs(settings, baseline, public)
    records = open_records(settings.data, task)
    rows, finite = inputs(records.inputs)
    labels = torch.from_numpy(records.labels[finite])
    fitted = partial(_fitted, settings.seed, budget, task.num_classes, console)
    model = fitted(baseline, rows[finite], labels)
    facts: dict[str, Any] = {"labels": None, "label_accuracy": None}
    if isinstance(model, PrivateModel):
        facts["noise_multiplier"] = model.noise_multiplier
    right = float((model.predict(inputs(public.test_inputs)[0]) == public.test_labels).mean())
    return {"epsilon": round_up(model.epsilon), "claim": model.claim, **facts, "accuracy": right}


def rehearsed(
    settings: PublicSide,
    budget: BudgetConfig,
    baseline: AnyBaseline,
    public: PublicData,
    console: Console,
) -> tuple[PublicSide, AnyBaseline]:
    """With the features and the learning rate that are best on labelled PUBLIC rows.

    Half of them, drawn as often as there are records, stand for the records. As given where fewer
    than MIN_ROWS have labels, or where the baseline has no learning rate.
    """
    labelled = labelled_rows(public, MIN_ROWS, MAX_LABELLED, settings.seed)
    if labelled is None or not isinstance(baseline, GradientDescent):
        return settings, baseline
    task, rng = describe(settings.data), np.random.default_rng(settings.seed)
    codes = task.labels.encode("labels", labelled.labels)
    asked, known = np.array_split(rng.permutation(len(codes)), 2)
    drawn = rng.choice(known, baseline.expected_records)
    tried = list[tuple[float, PublicSide, AnyBaseline]]()
    fitted = partial(_fitted, settings.seed, budget, task.num_classes, console)
    images = isinstance(baseline, NoisySgd)
    for named in [settings] if images else by_features(settings, task, public):
        rows = _inputs(named, baseline, public)(labelled.inputs)[0]
        for factor in RATES:
            other = replace(baseline, learning_rate=factor * baseline.learning_rate)
            labels = torch.from_numpy(codes[drawn])
            model = fitted(other, rows[drawn], labels)
            right = float((model.predict(rows[asked]) == codes[asked]).mean())
            tried.append((right, named, other))
    return max(tried, key=lambda each: each[0])[1:]


def _inputs(settings: PublicSide, baseline: AnyBaseline, public: PublicData) -> Inputs:
    """Images, standardised by statistics of the public rows, for noisy_sgd, otherwise the first
    round's features, -1..1.
    """
    if isinstance(baseline, NoisySgd):
        if public.inputs.ndim != 4:
            rule = "another baseline for feature vectors"
            raise InvalidInput("baseline.kind", rule, baseline.kind)
        scaled = Preprocessing.of_public(public.inputs)
        return lambda rows: (scaled(rows), np.ones(len(rows), dtype=bool))
    embedder = first_embedder(settings, public)

    def embedded(rows: np.ndarray) -> tuple[torch.Tensor, np.ndarray]:
        features, finite = embedder.embed(rows)
        return torch.from_numpy(features.astype(np.float32) / np.float32(MAX_ENTRY)), finite

    return embedded


def first_embedder(settings: PublicSide, public: PublicData) -> Embedder:
    """What computes the first round's features."""
    plain = PublicFeatures(settings, {"public": public.inputs}, no_progress).plain
    spec = first_extractor(settings, describe(settings.data), public.inputs)
    spec = whitened(spec, settings.whiten, plain)
    return Embedder(spec, workers=settings.workers, device=settings.device)


def _fitted(
    seed: int,
    budget: BudgetConfig,
    classes: int,
    console: Console,
    baseline: AnyBaseline,
    rows: torch.Tensor,
    labels: torch.Tensor,
) -> PrivateModel | PrivateClassifier:
    epsilon = budget.epsilon
    if not isinstance(baseline, NoisySgd | LinearNoisySgd):
        wide = rows.numpy().astype(np.float64)
        return fit_privately(baseline, wide, labels.numpy(), num_classes=classes, epsilon=epsilon)
    return train_privately(
        baseline,
        rows,
        labels,
        num_classes=classes,
        epsilon=epsilon,
        delta=budget.delta,
        seed=seed,
        progress=lambda done, total: console.progress("training privately", done, total),
    )
