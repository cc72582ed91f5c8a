"""The custodian's directory of some settings, opened, and a teacher over its records."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

from ...wall.console import Console
from ...wall.datasets.data_config import Task
from ...wall.files import PART, ROWS
from ...wall.guarantee import POOLED
from ...wall.progress import Progress, no_progress
from ..custodian import Custodian, open_custodian
from ..noise.entropy import Entropy
from ..records.private_records import open_records, stream_records
from ..records.source import source_digest
from ..teacher import Teacher
from .places import identity, tell_budgets
from .private_settings import PrivateSide
from .recorded import plan_beside


@contextmanager
def local_teacher(
    side: PrivateSide,
    task: Task,
    entropy: Entropy,
    console: Console,
    dataset: str | None = None,
    adversaries: Sequence[str] = (POOLED,),
) -> Iterator[Teacher]:
    """A teacher in this process over the custodian's directory; it has opened no record yet.

    Raises as ``custody``.
    """
    with closing(custody(side, entropy.unsafe, adversaries, console, dataset)) as custodian:
        yield teacher_factory(side, task, console.progress)(
            custodian.ledger,
            custodian.directory,
            task.num_classes,
            entropy,
            batch_size=side.batch_size,
            workers=side.workers,
            device=side.device,
            progress=console.progress,
        )


def custody(
    side: PrivateSide,
    unsafe: bool,
    adversaries: Sequence[str] = (POOLED,),
    console: Console | None = None,
    dataset: str | None = None,
) -> Custodian:
    """``open_custodian`` for the private side's settings, which name the directory.

    The console hears of other budgets of the same records, and of an anchor that was begun for a
    ledger in use: a mistyped name begins one, too. Private rows in memory that a kill left half
    written are deleted.
    """
    assert side.directory is not None
    console = console or Console()
    custodian = open_custodian(
        side.directory,
        data=identity(side.data),
        plan=side.plan(),
        recorded=partial(plan_beside, side.schedule),
        unsafe=unsafe,
        anchor=side.anchor_place,
        ledger_url=side.ledger_url,
        known_dataset=dataset,
        adversaries=adversaries,
    )
    for unfinished in (side.directory / ROWS).glob(f"*{PART}"):
        shutil.rmtree(unfinished) if unfinished.is_dir() else unfinished.unlink()
    tell_budgets(side, console.warn)
    if begun := custodian.ledger.anchor_begun:
        console.say(
            f"there was no anchor of that name; one begins at entry {begun} of the ledger, "
            "which needs it from now on."
        )
    return custodian


def teacher_factory(
    side: PrivateSide, task: Task, progress: Progress = no_progress
) -> Callable[..., Teacher]:
    """``Teacher`` over a configuration's private rows, of which it has opened none yet."""
    if not side.scale.shards:
        reading = partial(progress, "reading private rows (percent)")
        return partial(Teacher, partial(open_records, side.data, task, reading, side.privacy.unit))
    from ..shards.shards import ShardedRows  # torch

    stream = partial(stream_records, side.data, task, unit=side.privacy.unit)
    rows = partial(
        ShardedRows,
        scale=side.scale,
        input_shape=task.input_shape,
        source=partial(source_digest, side.data),
    )
    return partial(Teacher, stream, rows=rows)
