"""labelwall: differentially private students from private nearest-neighbour teachers.

The Python surface; each name is loaded when it is first used, so that no side of the wall loads
the other.
"""

import os
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

# Before any library is loaded, here and in child processes: ONNX Runtime, ray, the Hugging Face hub
# and FastAPI's OpenTelemetry would tell others that they run (SECURITY.md).
os.environ |= {
    "ORT_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "OTEL_SDK_DISABLED": "true",
}

if TYPE_CHECKING:
    from .experiment import sklearn
    from .experiment.api import compare, fit, plan
    from .experiment.attack import attack
    from .experiment.data import Data
    from .experiment.model import Model, audit, load
    from .wall.errors import LabelwallError

__all__ = [
    "Data",
    "LabelwallError",
    "Model",
    "__version__",
    "attack",
    "audit",
    "compare",
    "fit",
    "load",
    "plan",
    "sklearn",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return metadata.version("labelwall")
    if name not in __all__:
        raise AttributeError(f"module 'labelwall' has no attribute {name!r}")
    if name == "sklearn":
        return import_module(".experiment.sklearn", __name__)
    places = {"Data": "data", "attack": "attack"}
    places |= dict.fromkeys(("Model", "load", "audit"), "model")
    place = f".experiment.{places.get(name, 'api')}"
    if name == "LabelwallError":
        place = ".wall.errors"
    return getattr(import_module(place, __name__), name)
