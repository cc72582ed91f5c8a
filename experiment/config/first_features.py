"""The feature map of the first round, by its name in the configuration."""

from __future__ import annotations

from pathlib import Path

from ...wall.datasets.sources import Task
from ...wall.errors import InvalidInput
from ...wall.messages import ExtractorSpec
from .checks import STAGES, TIMM
from .config import Config


def first_extractor(config: Config, task: Task) -> ExtractorSpec:
    """The features of the first round.

    Raises InvalidInput where they do not fit the inputs, MissingData where weights are missing.
    """
    images = len(task.input_shape) == 3
    features = config.features if config.features != "auto" else "hog" if images else "raw"
    if (features in ("raw", "box")) == images:
        networks = f"efficientnet_lite0, {STAGES} or timm/NAME"
        rule = f"hog, {networks} for images, raw or box for feature vectors"
        raise InvalidInput("features", rule, features)
    if features == "box":
        return box_extractor(config.box, task)
    if features in ("efficientnet_lite0", STAGES):
        from ...wall.networks.pretrained import efficientnet_lite0  # torch

        return efficientnet_lite0(task.input_shape, task.num_classes, stages=features == STAGES)
    if features.startswith(TIMM):
        from ...wall.networks.pretrained import timm_model  # torch

        weights = None if config.weights is None else Path(config.weights)
        return timm_model(features.removeprefix(TIMM), weights, task.input_shape, task.num_classes)
    return ExtractorSpec(features, task.input_shape, task.num_classes)


def box_extractor(box: list[list[float]], task: Task) -> ExtractorSpec:
    """Feature vectors of a declared domain, each side on its own scale.

    Raises InvalidInput unless there is one side, or one for each dimension.
    """
    (dimensions,) = task.input_shape
    sides = box * dimensions if len(box) == 1 else box
    if len(sides) != dimensions:
        raise InvalidInput("box", f"one side, or {dimensions}", len(sides))
    middle = tuple((low + high) / 2 for low, high in sides)
    half = tuple((high - low) / 2 for low, high in sides)
    return ExtractorSpec("box", task.input_shape, task.num_classes, mean=middle, std=half)
