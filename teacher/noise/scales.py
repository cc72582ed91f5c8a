"""Which scales of noise can be drawn."""

from __future__ import annotations

from labelwall.wall.errors import InvalidInput

MAX_SCALE = 2.0**50  # noise must fit int64, in magnitude and next to votes


def check_scale(name: str, value: float) -> None:
    """Raises InvalidInput unless ``value`` (a sigma or a Laplace scale) is in (0, 2^50]."""
    if not 0 < value <= MAX_SCALE:
        raise InvalidInput(name, "positive and at most 2^50", value)
