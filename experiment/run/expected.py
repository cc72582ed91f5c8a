"""How long the parts of a run take on this machine, by PUBLIC facts and a short trial."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...student.public_settings import PublicSide
from ...student.student_config import PRETRAINED
from ...wall.datasets.data_config import PublicData, Task
from ...wall.datasets.sources import describe, read_public
from ...wall.messages import ExtractorSpec
from .tuning import AROUND, ASKING, RANGE, READING, REPORT, REST, STEP, TRIED, VIEWS


def guessed(
    rounds: Sequence[int], rehearsal: float, embedding: float = 5.0, training: float = 15.0
) -> dict[str, float]:
    """Seconds of each part, in the order in which they begin: a round embeds while it asks."""
    each = {"asking": ASKING, "embedding": embedding, "training": training}
    asked = {f"round {n}: {part}": seconds for n in rounds for part, seconds in each.items()}
    return {"rehearsal": rehearsal, "reading": READING, **asked, "report": REPORT}


def tried(
    settings: PublicSide,
    task: Task,
    public: PublicData,
    rounds: Sequence[int],
    first: ExtractorSpec,
) -> dict[str, float]:
    """``guessed`` by rows that are embedded by the ``first`` round's features, steps of a network
    like the student's, and the number of private rows that is expected, which is public.
    """
    import torch

    from ...student.learning import fixed_or_small
    from ...student.train import LINEAR
    from ...wall.features.embedder import Embedder
    from ...wall.networks import build, one_thread

    student, shape, count = settings.student, task.input_shape, len(public.inputs)
    embedder = Embedder(first)
    a_row = _seconds(lambda: embedder.features(public.inputs[:TRIED])) / min(TRIED, count)
    size = student.batch_labelled + VIEWS[student.objective] * student.batch_unlabelled
    step, backbone, views = STEP, fixed_or_small(student), 0.0
    if backbone != LINEAR:
        with torch.random.fork_rng(devices=()):
            network = build(backbone, input_shape=shape, num_classes=task.labels.outputs)
        x = torch.zeros(size, *([shape[-1], *shape[:2]] if len(shape) == 3 else shape))
        with one_thread():
            step += AROUND * _seconds(lambda: network(x).sum().backward())
    judges = student.doubtful_folds * student.doubtful_steps / settings.workers
    judged = judges * step * student.batch_labelled / size
    if student.backbone == PRETRAINED:  # the last blocks, on views that the first ones keep
        step, views = step + REST * a_row * size, student.kept_views * a_row * count
    embedding = a_row * (count + len(public.test_inputs) + settings.records(count))
    return guessed(rounds, 0.0, embedding, judged + views + student.steps * step)


def refining(settings: PublicSide, rounds: int) -> float:
    """Seconds of a pretrained student's training, and of its features in later ``rounds``, in which
    no student is trained: the released classifier is taken.
    """
    parts = _of_settings(settings, range(1, rounds + 1))
    later = (parts[f"round {number}: embedding"] for number in range(2, rounds + 1))
    return parts["round 1: training"] + sum(later)


def forecast(settings: PublicSide, rounds: int, rehearsal: float) -> tuple[dict[str, int], str]:
    """(range of a run's seconds, a line of it), with those of the ``rehearsal`` of its method."""
    seconds = rehearsal + sum(_of_settings(settings, range(rounds)).values())
    cores = len(os.sched_getaffinity(0))
    low, high = (round(float(f"{factor * seconds:.1g}")) for factor in RANGE)
    line = f"a run takes about {low} to {high} s on {cores} free cores: an estimate, by public rows"
    return {"from": low, "to": high, "cores": cores}, line


def _of_settings(settings: PublicSide, rounds: Sequence[int]) -> dict[str, float]:
    """``tried`` by settings alone."""
    from ...student.asking.boosted import TREES  # scikit-learn takes a second
    from ...student.asking.features import first_extractor

    task, public = describe(settings.data), read_public(settings.data)
    known = replace(settings, features="raw") if settings.features == TREES else settings
    first = first_extractor(known, task, public.inputs)  # trees are not made for this
    return tried(settings, task, public, rounds, first)


def _seconds(does: Callable[[], object]) -> float:
    """Seconds of a CPU, however busy it is. The first time, which takes longer, does not count."""
    does()
    began = time.process_time()
    does()
    return time.process_time() - began
