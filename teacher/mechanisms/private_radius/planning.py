"""The search for private_radius: that of private_knn, for votes that move by less."""

from __future__ import annotations

from ..private_knn.planning import ScreenedPlanner
from .mechanism import PrivateRadius

PLANNER = ScreenedPlanner(PrivateRadius, "share")
