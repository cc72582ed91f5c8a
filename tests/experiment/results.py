"""Made results of runs, for tests of what is said of them."""

from typing import Any

from labelwall.experiment.run.summary import Summary
from labelwall.student.results import RoundResult


def made_round(**known: Any) -> RoundResult:
    """A round's result with these fields."""
    fields: dict[str, Any] = {
        "period": 1,
        "asked": 10,
        "answered": 8,
        "abstained": 2,
        "cap_reached": 0,
        "label_accuracy": None,
        "student_accuracy": None,
        "confusion": [[0]],
        "calibration_error": None,
        "test_sha256": "00",
        "estimate": None,
        "extractor": "raw",
        "features": "",
        "features_of": 0,
        "taught": True,
        "dropped": 0,
        "seconds": 1.0,
        "epsilon_reading": 0.5,
        "ledger_head": "00",
    }
    return RoundResult(**(fields | known))


def made_summary(**known: Any) -> Summary:
    """A run's summary with these fields."""
    fields: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "unsafe": False,
        "adversary": "pooled",
        "unit": "row",
        "certificates": {},
        "best_round": 1,
        "test_accuracy": None,
        "rounds": (made_round(),),
        "dataset": "name",
        "ledger_head": "00",
        "lost": {},
        "private_score": None,
        "custodians": (),
        "seed": 0,
        "public_rows": 10,
        "periods": (),
        "test_rows": 0,
        "held_out": False,
        "date": "2026-01-01",
    }
    return Summary(**(fields | known))
