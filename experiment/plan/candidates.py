"""The search for the parameters of each kind of mechanism; None where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...teacher.mechanisms.base import Mechanism
from . import private_linear, reverse_knn, screened
from .goal import Planner
from .ind_knn import IndKnnPlanner
from .values import ValuesPlanner


def _linear(mechanism: Any) -> Planner:
    return private_linear.planner(type(mechanism))


PLANNERS: dict[str, Callable[[Any], Planner] | None] = {
    "private_knn": lambda _: screened.BY_NUMBER,
    "private_radius": lambda _: screened.BY_RADIUS,
    "ind_knn": IndKnnPlanner,
    "reverse_knn": lambda _: reverse_knn.PLANNER,
    "private_linear": _linear,
    "naive_knn": None,
    "lnmax": None,
    "gnmax": None,
    "confident_gnmax": None,
    "radius": None,
    "batch_knn": None,
    "private_knn_attributes": None,
    "gnmax_attributes": None,
    "private_linear_attributes": _linear,
    "private_knn_mean": ValuesPlanner,
    "private_knn_median": ValuesPlanner,
    "private_linear_value": _linear,
    "auto": None,
}


def planner(mechanism: Mechanism) -> Planner | None:
    """The search for the mechanism's parameters on public rows; None if there is none."""
    search = PLANNERS[mechanism.kind]
    return None if search is None else search(mechanism)
