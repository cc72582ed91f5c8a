"""A finished run's student as a file with all the metadata that its use needs."""

from __future__ import annotations

from ...student.student_file import Privacy, StudentInfo, pack
from ...teacher.accounting.accountant import smallest_certified
from ...teacher.accounting.plan import Plan
from ...wall.datasets.sources import DataConfig, describe
from ...wall.datasets.table import scaling
from ...wall.errors import LabelwallError
from ...wall.labels.base import LabelSpace
from ...wall.labels.registry import label_space
from .run_folder import RunFolder


def described_student(
    folder: RunFolder, data: DataConfig, labels: LabelSpace, summary: dict, plan: Plan
) -> bytes:
    """The kept round's student with its metadata: a safetensors file.

    ``summary``: what summary.json holds. All of it is public, so nothing is charged.
    """
    kept = summary["best_round"]
    spec, metrics = folder.load_extractor(kept), folder.metrics(kept) or {}
    privacy = Privacy(
        summary["epsilon"],
        summary["delta"],
        smallest_certified(plan),
        summary["adversary"],
        summary["ledger_head"],
        summary["dataset"],
        plan.unit,
    )
    info = StudentInfo(
        spec.backbone,
        spec.input_shape,
        spec.mean,
        spec.std,
        labels,
        metrics.get("temperature", 1.0),
        privacy,
        table=scaling(data) if data.source == "table" else None,
    )
    return pack(info, spec.weights)


def labels_of(data: DataConfig, outputs: int) -> LabelSpace:
    """The task's labels, named by numbers where the public data that names them is gone.

    ``outputs``: how many classes or attributes there are.
    """
    try:
        names = describe(data).labels.names
    except LabelwallError:
        names = data.declared_labels.names
    numbers = [str(number) for number in range(outputs)]
    return label_space(data.labels, names if len(names) == outputs else numbers, data.bounds)
