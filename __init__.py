"""labelwall: differentially private students from private nearest-neighbour teachers.

The Python surface; each name is loaded when it is first used, so that no side of the wall loads
the other.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .experiment.api import Data, Model, audit, compare, fit, load, plan
    from .wall.errors import LabelwallError

__all__ = [
    "Data",
    "LabelwallError",
    "Model",
    "__version__",
    "audit",
    "compare",
    "fit",
    "load",
    "plan",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return metadata.version("labelwall")
    if name not in __all__:
        raise AttributeError(f"module 'labelwall' has no attribute {name!r}")
    place = ".wall.errors" if name == "LabelwallError" else ".experiment.api"
    return getattr(import_module(place, __name__), name)
