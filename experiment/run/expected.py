"""How long the parts of a run take on this machine, by PUBLIC facts and a short trial."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from ...student.public_settings import PublicSide
from ...student.student_config import PRETRAINED
from ...wall.datasets.data_config import PublicData, Task
from ...wall.datasets.sources import describe, read_public
from ..config.config import Config
from . import tuning


def guessed(rounds: Sequence[int], rehearsal: bool) -> dict[str, float]:
    """Seconds of each part, in order, before a row is read."""
    parts = {"rehearsal": tuning.REHEARSAL} if rehearsal else {}
    parts |= {"reading": tuning.READING}
    for number in rounds:
        parts |= _round(number, tuning.EMBEDDING, tuning.TRAINING)
    return parts | {"report": tuning.REPORT}


def tried(
    settings: PublicSide, task: Task, public: PublicData, rounds: Sequence[int]
) -> dict[str, float]:
    """The same, by a few rows that are embedded and a few steps of the student's network.

    Of the private rows it takes the number that is expected, which is public.
    """
    from ...student.asking.features import first_extractor
    from ...wall.features.embedder import Embedder

    rows = public.inputs[: tuning.TRIED_ROWS]
    embedder = Embedder(first_extractor(settings, task, public.inputs), workers=settings.workers)
    a_row = _seconds(lambda: embedder.features(rows)) / len(rows)
    known = len(public.inputs) + len(public.test_inputs)
    embedding = a_row * (known + settings.records(len(public.inputs)))
    training = _training(settings, task, a_row, len(public.inputs))
    parts = {"reading": tuning.READING}
    for number in rounds:
        parts |= _round(number, embedding, training)
    return parts | {"report": tuning.REPORT}


def forecast(config: Config, rehearsal: float) -> tuple[dict[str, int], str]:
    """(range of the seconds of a run whose method is known, the same as a line).

    ``rehearsal``: seconds of the one that chose it.
    """
    settings = config.public_side()
    parts = tried(
        settings, describe(config.data), read_public(config.data), range(1, len(config.rounds) + 1)
    )
    seconds, cpus = rehearsal + sum(parts.values()), len(os.sched_getaffinity(0))
    low, high = (round(float(f"{factor * seconds:.1g}")) for factor in tuning.RANGE)
    line = f"a run takes about {low} to {high} s on {cpus} free cores: an estimate, by public facts"
    return {"from": low, "to": high, "cores": cpus}, line


def _round(number: int, embedding: float, training: float) -> dict[str, float]:
    seconds = {"embedding": embedding, "asking": tuning.ASKING, "training": training}
    return {f"round {number}: {part}": value for part, value in seconds.items()}


def _training(settings: PublicSide, task: Task, a_row: float, rows: int) -> float:
    """Seconds of a student's training, and of the short ones that judge labels before it.

    ``a_row``: seconds for the features of a row; ``rows``: public ones.
    """
    import torch

    from ...student.learning import fixed_or_small
    from ...student.train import LINEAR
    from ...wall.networks import build, one_thread

    student, shape = settings.student, task.input_shape
    size = student.batch_labelled + tuning.VIEWS[student.objective] * student.batch_unlabelled
    judged = student.doubtful_folds * student.doubtful_steps / settings.workers
    step, backbone = tuning.STEP, fixed_or_small(student)
    if backbone != LINEAR:
        with torch.random.fork_rng(devices=()):
            network = build(backbone, input_shape=shape, num_classes=task.labels.outputs)
        x = torch.zeros(size, *([shape[-1], *shape[:2]] if len(shape) == 3 else shape))
        with one_thread() if len(shape) == 1 else nullcontext():  # as it is trained
            trial = _seconds(lambda: network(x).sum().backward(), tuning.TRIED_STEPS)
        step += tuning.AROUND * trial
    judges = judged * step * student.batch_labelled / size
    if student.backbone == PRETRAINED:  # the last blocks, on views that the first ones keep
        step += tuning.REST * a_row * size
        judges += student.kept_views * a_row * rows
    return judges + student.steps * step


def _seconds(does: Callable[[], object], times: int = 1) -> float:
    """Seconds of one CPU each time, however busy the machine is."""
    does()  # the first time takes longer
    began = time.process_time()
    for _ in range(times):
        does()
    return (time.process_time() - began) / times
