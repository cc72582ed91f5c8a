"""A comparison's models that are trained privately on the records themselves, and on PUBLIC rows
to choose their settings.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...student.asking.features import PublicFeatures, first_extractor, whitened
from ...student.measures import means
from ...student.public_settings import PublicSide
from ...student.scores import measured
from ...teacher.accounting.conversion import round_up
from ...teacher.baselines.baseline_settings import AnyBaseline, LinearNoisySgd, NoisySgd
from ...teacher.baselines.noisy_sgd import PrivateModel, train_privately
from ...teacher.baselines.private_classifiers import PrivateClassifier, fit_privately
from ...teacher.custody.groups import BudgetConfig
from ...teacher.records.private_records import Records
from ...wall.console import Console
from ...wall.datasets.data_config import PublicData, Task
from ...wall.errors import InvalidInput
from ...wall.features.embedder import Embedder
from ...wall.matrices import MAX_ENTRY
from ...wall.preprocessing import Preprocessing
from ...wall.progress import no_progress
from ..plan.rehearsal import LabelledRows

# Inputs of a model, and which of the rows are finite
Inputs = Callable[[np.ndarray], tuple[torch.Tensor, np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class PrivateTraining:
    """Trains baselines within a budget. diffprivlib's classifiers have no ``seed``."""

    task: Task
    public: PublicData
    budget: BudgetConfig
    seed: int
    console: Console

    def tested(
        self, settings: PublicSide, baseline: AnyBaseline, records: Records
    ) -> dict[str, Any]:
        """A model trained privately on the records, judged on the public test split.

        ``claim`` says whose epsilon it is: the ledger certifies none of them.
        """
        inputs = self._inputs(settings, baseline)
        rows, finite = inputs(records.inputs)
        model = self._fitted(baseline, rows[finite], torch.from_numpy(records.labels[finite]))
        facts: dict[str, Any] = {"labels": None, "label_accuracy": None}
        if isinstance(model, PrivateModel):
            facts["noise_multiplier"] = model.noise_multiplier
        said, truth = (
            model.probabilities(inputs(self.public.test_inputs)[0]),
            self.public.test_labels,
        )
        return {
            "epsilon": round_up(model.epsilon),
            "claim": model.claim,
            **facts,
            "accuracy": float((said.argmax(axis=1) == truth).mean()),
            **means(measured(self.task, self.public, said)),
        }

    def rehearsed(
        self,
        tried: Sequence[PublicSide],
        baselines: Sequence[AnyBaseline],
        labelled: LabelledRows,
        records: int,
    ) -> tuple[PublicSide, AnyBaseline]:
        """The features and the baseline that are best on labelled PUBLIC rows.

        Half of them, drawn as often as there are ``records``, stand for these.
        """
        codes = self.task.labels.encode("labels", labelled.labels)
        rng = np.random.default_rng(self.seed)
        asked, known = np.array_split(rng.permutation(len(codes)), 2)
        drawn = rng.choice(known, records)
        found = list[tuple[float, PublicSide, AnyBaseline]]()
        for settings in tried:
            rows = self._inputs(settings, baselines[0])(labelled.inputs)[0]
            for baseline in baselines:
                model = self._fitted(baseline, rows[drawn], torch.from_numpy(codes[drawn]))
                right = float((model.predict(rows[asked]) == codes[asked]).mean())
                found.append((right, settings, baseline))
        _, settings, baseline = max(found, key=lambda each: each[0])
        return settings, baseline

    def _inputs(self, settings: PublicSide, baseline: AnyBaseline) -> Inputs:
        """Images, standardised by statistics of the public rows, or the first round's features,
        -1..1.
        """
        if baseline.images:
            if self.public.inputs.ndim != 4:
                rule = "another baseline for feature vectors"
                raise InvalidInput("baseline.kind", rule, baseline.kind)
            scaled = Preprocessing.of_public(self.public.inputs)
            return lambda rows: (scaled(rows), np.ones(len(rows), dtype=bool))
        embedder = first_embedder(settings, self.task, self.public.inputs)

        def embedded(rows: np.ndarray) -> tuple[torch.Tensor, np.ndarray]:
            features, finite = embedder.embed(rows)
            return torch.from_numpy(features.astype(np.float32) / np.float32(MAX_ENTRY)), finite

        return embedded

    def _fitted(
        self, baseline: AnyBaseline, rows: torch.Tensor, labels: torch.Tensor
    ) -> PrivateModel | PrivateClassifier:
        epsilon, classes = self.budget.epsilon, self.task.num_classes
        if not isinstance(baseline, NoisySgd | LinearNoisySgd):
            wide = rows.numpy().astype(np.float64)
            codes = labels.numpy()
            return fit_privately(baseline, wide, codes, num_classes=classes, epsilon=epsilon)
        return train_privately(
            baseline,
            rows,
            labels,
            num_classes=classes,
            epsilon=epsilon,
            delta=self.budget.delta,
            seed=self.seed,
            progress=lambda done, total: self.console.progress("training privately", done, total),
        )


def first_embedder(settings: PublicSide, task: Task, public: np.ndarray) -> Embedder:
    """What computes the first round's features, by PUBLIC inputs."""
    plain = PublicFeatures(settings, {"public": public}, no_progress).plain
    spec = whitened(first_extractor(settings, task, public), settings.whiten, plain)
    return Embedder(spec, workers=settings.workers, device=settings.device)
