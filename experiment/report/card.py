"""MODEL_CARD.md of a finished run, in the Hugging Face Hub's form: front matter, then sections.

From the run folder and its public data alone, as the report. The same run folder gives the same
bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ...student.model import unpack
from ...teacher.accounting.accountant import smallest_certified
from ...wall.guarantee import POOLED
from ...wall.labels import LabelSpace
from ..run.metrics import uneven
from .report import (
    COUNTS,
    FinishedRun,
    environment,
    label_space_of,
    rarely_right,
    read_run,
    scores_by_name,
)

TASKS = {  # by kind of label, for images and for vectors
    "class": ("image-classification", "tabular-classification"),
    "attributes": ("image-classification", "tabular-classification"),
    "value": ("other", "tabular-regression"),
}


def write_card(run_dir: Path) -> Path:
    """Write MODEL_CARD.md of a finished run and return its path. Raises as ``read_run``."""
    run = read_run(run_dir)
    run.folder.write_text(run.folder.card, card(run))
    return run.folder.card


def card(run: FinishedRun, file: str = "student.safetensors") -> str:
    """The card's text. ``file``: the name of the student's file beside it."""
    space, plan = label_space_of(run), run.config.plan()
    last, shape = run.last, run.folder.load_extractor(run.kept).input_shape
    images = len(shape) == 3
    info = unpack(run.folder.student.read_bytes()) if run.folder.student.is_file() else None
    shown: dict[str, Any] = {
        "front": yaml.safe_dump(
            _front(run, space, images), sort_keys=False, allow_unicode=True
        ).strip(),
        "file": file,
        "labels": space,
        "images": images,
        "certified": run.certified,
        "unsafe": run.unsafe,
        "problems": run.problems,
        "delta": plan.delta,
        "certificate": smallest_certified(plan),
        "unit": plan.unit,
        "adversary": None if run.finding.adversary == POOLED else run.finding.adversary,
        "head": run.summary["ledger_head"],
        "config": run.config,
        "choice": run.choice,
        "rounds": [
            {**metrics, "mechanism": run.config.mechanism_of(number).kind}
            for number, metrics in enumerate(run.rounds, start=1)
        ],
        "asked": {count: sum(metrics[count] for metrics in run.rounds) for count in COUNTS},
        "last": last,
        "summary": run.summary,
        "scores": scores_by_name(last, space),
        "rarely_right": rarely_right(last, space),
        "uneven": uneven(run.summary),
        "temperature": info.temperature if info else last.get("temperature", 1.0),
        "version": info.version if info else None,
        "shape": shape,
        "table": info.table if info else None,
    }
    return environment().get_template("model_card.md").render(shown).rstrip() + "\n"


def _front(run: FinishedRun, space: LabelSpace, images: bool) -> dict[str, Any]:
    """The front matter: what the Hub lists a model by."""
    task, data = TASKS[space.kind][0 if images else 1], run.config.data.source
    scores = {"accuracy": run.summary["test_accuracy"]}
    if space.kind == "value":
        scores = dict(run.summary["test_errors"] or {})
    elif run.last.get("calibration_error") is not None:
        scores["expected_calibration_error"] = run.last["calibration_error"]
    metrics = [
        {"type": name, "value": round(value, 6)}
        for name, value in scores.items()
        if value is not None
    ]
    results = {
        "task": {"type": task},
        "dataset": {"name": data, "type": data, "split": "test"},
        "metrics": metrics,
    }
    return {
        "library_name": "labelwall",
        "pipeline_tag": task,
        "tags": ["labelwall", "differential-privacy", "pate", run.config.student.backbone],
        "metrics": list(scores),
        "model-index": [
            {"name": f"labelwall student of {data}", "results": [results]},
        ],
    }
