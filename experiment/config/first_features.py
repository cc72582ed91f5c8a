"""What the first round's features follow from, and how features are computed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ...wall.errors import InvalidInput

STAGES = "efficientnet_lite0_stages"
FEATURES = ("auto", "hog", "raw", "efficientnet_lite0", STAGES, "box")
TIMM = "timm/"  # with a model's name: further features


@dataclass(frozen=True)
class FirstFeatures:
    """The settings that say which features the first round asks with; see ``Config``.

    Raises InvalidInput for an unknown name, for weights with anything but a timm model, unless a
    box is given for "box" alone, with low < high, finite, and unless ``whiten`` is a count, and 0
    for "box", which declares scales.
    """

    features: str = "auto"
    weights: str | None = None
    box: list[list[float]] = field(default_factory=list)
    whiten: int = 0

    def __post_init__(self) -> None:
        name, box = self.features, self.box
        if name not in FEATURES and not name.startswith(TIMM):
            raise InvalidInput("features", f"one of {', '.join(FEATURES)}, {TIMM}NAME", name)
        if self.weights is not None and not name.startswith(TIMM):
            raise InvalidInput("weights", f"given with features: {TIMM}NAME alone", self.weights)
        if (name == "box") != bool(box):
            raise InvalidInput("box", "given with features: box, and with nothing else", box)
        for side in box:
            if len(side) != 2 or not all(map(math.isfinite, side)) or side[0] >= side[1]:
                raise InvalidInput("box", "a list of [low, high] with low < high, finite", side)
        if self.whiten < 0 or (self.whiten and name == "box"):
            raise InvalidInput("whiten", "a count, and 0 with features: box", self.whiten)


@dataclass(frozen=True)
class Computing:
    """The settings by which features are computed; no result depends on them. See ``Config``."""

    batch_size: int = 256
    workers: int = 2
    device: str = "cpu"
