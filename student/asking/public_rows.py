"""The public side's rows, and what it knows of them."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from ...wall.datasets.data_config import PublicData, Task
from ...wall.features.embedder import unit_length
from ...wall.labels import LabelSpace
from ...wall.matrices import MAX_DIMENSIONS
from ...wall.messages import ExtractorSpec
from ...wall.progress import Progress
from ..linear.labelled import PublicLabels, labelled
from ..public_settings import PublicSide
from .boosted import Boosted, boosted
from .features import PublicFeatures, first_extractor

MIN_LABELLED = 100  # rows that tell how frequent classes are


def learned_labels(settings: PublicSide, task: Task, public: PublicData) -> np.ndarray | None:
    """Labels of PUBLIC rows that are learned beside the released ones, int64 [n], -1 for none.

    None if they serve metrics alone.
    """
    if public.labels is None or not settings.taught:
        return None
    return task.labels.encode("labels", public.labels)


@dataclass(frozen=True, kw_only=True)
class PublicRows:
    """What asking and training see of a data set: its public and its test rows.

    ``first``: features of the first round, before they are whitened. ``learned``: labels of public
    rows that are learned beside the released ones, int64 [n], -1 elsewhere; None if labels of
    public rows serve metrics alone. Underlined: what was computed already.
    """

    settings: PublicSide
    task: Task
    data: PublicData
    first: ExtractorSpec
    features: PublicFeatures
    learned: np.ndarray | None = None
    _alone: dict[str, tuple[str, float] | None] = field(default_factory=dict, init=False)

    @classmethod
    def of(
        cls,
        settings: PublicSide,
        task: Task,
        public: PublicData,
        progress: Progress,
        **others: np.ndarray,
    ) -> Self:
        """What is known before anything is asked. ``others``: rows by name whose features may be
        needed, too. Raises InvalidInput, MissingData.
        """
        learned = learned_labels(settings, task, public)
        trees = boosted(public.inputs, learned, task.labels)
        rows = {"public": public.inputs, **others}
        return cls(
            settings=settings,
            task=task,
            # No metric is of rows that were trained on
            data=public if learned is None else replace(public, labels=None),
            first=first_extractor(settings, task, public.inputs, trees),
            features=PublicFeatures(settings, rows, progress, trees),
            learned=learned,
        )

    @property
    def class_shares(self) -> np.ndarray | None:
        """Shares of the classes among labelled public and test rows, float64 [c].

        None if fewer than MIN_LABELLED are labelled.
        """
        if self.task.labels.kind != "class":
            return None
        given = self.data.labels if self.learned is None else self.learned
        truths = self.data.test_labels if given is None else [*given, *self.data.test_labels]
        labels = np.asarray(truths, dtype=np.int64)
        counts = np.bincount(labels[labels >= 0], minlength=self.task.num_classes)
        return counts / counts.sum() if counts.sum() >= MIN_LABELLED else None

    def labelled(self, extractor: ExtractorSpec) -> PublicLabels | None:
        """A classifier or regression of the labels that are learned, by these features.

        None without any.
        """
        features = self.features.quantised(extractor)
        length = unit_length(extractor, features.shape[1])
        return labelled(features, self.learned, length, self.task.labels)

    def alone(self, asked: ExtractorSpec) -> tuple[str, float] | None:
        """The better model of the labels that are learned, by plain features or by ``asked`` ones.

        None if neither learns anything.
        """
        if self.learned is None:
            return None
        if (key := asked.sha256()) not in self._alone:
            specs = [self.first] if self.plain_alone else []
            seen = [(spec, self.features.quantised(spec)) for spec in (*specs, asked)]
            found = labels_alone(seen, self.learned, self.task.labels, self.features.trees)
            self._alone[key] = found
        return self._alone[key]

    @property
    def plain_alone(self) -> bool:
        """Whether labels are learned by plain features: not of more than a teacher takes."""
        return self.features.plain(self.first).shape[1] <= MAX_DIMENSIONS


def labels_alone(
    seen: Iterable[tuple[ExtractorSpec, np.ndarray]],
    labels: np.ndarray,
    space: LabelSpace,
    trees: Boosted | None,
) -> tuple[str, float] | None:
    """The best model of PUBLIC ``labels`` without private rows, and its share.

    The share of right labels, or R2 of values, is cross-validated. The model is boosted trees, or
    logistic (of values: ridge) regression on features int8 [n, d] of one of the extractors.
    """
    found = [] if trees is None else [("boosted trees", trees.right)]
    name = "ridge" if space.kind == "value" else "logistic"
    for spec, features in seen:
        length = unit_length(spec, features.shape[1])
        if (model := labelled(features, labels, length, space)) is not None:
            found.append((f"{name} regression on {spec.backbone} features", model.right))
    return max(found, key=lambda each: each[1], default=None)
