"""Who answers a run's queries: a teacher in this process, in a child of it, or behind a URL. All have the same methods."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from labelwall.experiment.config.config import Config
from labelwall.experiment.run.child import child
from labelwall.experiment.run.console import Console
from labelwall.teacher.accounting.plan import Plan
from labelwall.teacher.custodian import Custodian, open_custodian
from labelwall.teacher.noise.entropy import Entropy
from labelwall.teacher.records.sources import open_records, stream_records
from labelwall.teacher.sharded_teacher import ShardedTeacher
from labelwall.teacher.teacher import Teacher
from labelwall.wall.adversary import POOLED
from labelwall.wall.cells import CellCounts, Cells
from labelwall.wall.client import RemoteTeacher
from labelwall.wall.datasets.sources import DataConfig, Task
from labelwall.wall.errors import InvalidInput, LedgerMismatch
from labelwall.wall.messages import Answers, ExtractorSpec, Queries

KEY = "LABELWALL_KEY"  # environment variable with the API key: it is no setting, so no file records it


class Answering(Protocol):
    """What a round needs of a teacher, wherever it is."""

    def use_extractor(self, spec: ExtractorSpec, probe: np.ndarray | None = None) -> None: ...

    def answer(self, queries: Queries) -> Answers: ...

    def count(self, cells: Cells) -> CellCounts: ...

    def export(self, path: Path) -> None:
        """Write the auditors' copy of the ledger."""
        ...


def custody(
    config: Config,
    directory: Path,
    unsafe: bool,
    known_dataset: str | None = None,
    adversaries: Sequence[str] = (POOLED,),
) -> Custodian:
    """Open, or set up, the custodian's directory that a configuration names; ``adversaries``: as for ``open_custodian``.

    Raises LedgerMismatch, InvalidInput.
    """
    return open_custodian(
        directory,
        data=_publishable(config.data),
        data_defaults=_publishable(DataConfig()),
        plan=config.plan(),
        unsafe=unsafe,
        anchor=config.anchor_place(),
        ledger_url=config.ledger_url(),
        known_dataset=known_dataset,
        adversaries=adversaries,
    )


def _publishable(data: DataConfig) -> dict[str, object]:
    """The settings that say which rows there are."""
    return {key: value for key, value in asdict(data).items() if key != "download"}


def say_anchor(custodian: Custodian, console: Console) -> None:
    """Say so where an anchor was begun for a ledger in use: a name that was mistyped begins one, too."""
    begun = custodian.ledger.anchor_begun
    if begun:
        console.say(
            f"there was no anchor of that name; one begins at entry {begun} of the ledger, which needs it from now on."
        )


@contextmanager
def teacher_of(
    config: Config,
    task: Task,
    directory: Path,
    entropy: Entropy,
    console: Console,
    *,
    known_dataset: str | None = None,
    isolate: bool = False,
) -> Iterator[Answering]:
    """The teacher that a configuration names: behind its URL, or else here, over the custodian's ``directory``; in a process of
    its own where ``isolate`` is set.

    Raises LedgerMismatch where it has another plan, another kind of entropy, or another data set than ``known_dataset``.
    """
    if config.teacher is not None and isolate:
        raise InvalidInput(
            "isolate", "left out with a teacher's URL, which is a process of its own", True
        )
    if config.teacher is not None or isolate:
        behind = nullcontext((config.teacher or "", os.environ.get(KEY)))
        with (
            child(config, directory) if isolate else behind as (url, key),  # type: ignore[attr-defined]
            remote(url, key, config.plan(), entropy.unsafe, console, known_dataset) as answering,
        ):
            yield answering
        return
    with local_teacher(config, task, directory, entropy, console, known_dataset) as teacher:
        yield teacher


@contextmanager
def local_teacher(
    config: Config,
    task: Task,
    directory: Path,
    entropy: Entropy,
    console: Console,
    known_dataset: str | None = None,
    adversaries: Sequence[str] = (POOLED,),
) -> Iterator[Teacher]:
    """The teacher of this process over the custodian's ``directory``, which has opened no record yet. Raises as ``custody``."""
    custodian = custody(config, directory, entropy.unsafe, known_dataset, adversaries)
    say_anchor(custodian, console)
    try:
        yield teaching(config, task)(
            custodian.ledger,
            custodian.directory,
            task.num_classes,
            entropy,
            batch_size=config.batch_size,
            workers=config.workers,
            device=config.device,
            progress=console.progress,
        )
    finally:
        custodian.close()


def teaching(config: Config, task: Task) -> Callable[..., Teacher]:
    """The kind of teacher that a configuration names, over its private rows; what is left to give is the custodian's."""
    if not config.scale.shards:
        return partial(Teacher, lambda: open_records(config.data, task))
    stream = partial(stream_records, config.data, task)
    return partial(ShardedTeacher, stream, scale=config.scale, input_shape=task.input_shape)


@contextmanager
def remote(
    url: str, key: str | None, plan: Plan, unsafe: bool, console: Console, known_dataset: str | None
) -> Iterator[RemoteTeacher]:
    """A service that serves what the configuration says. Raises LedgerMismatch for another, InvalidInput without a key."""
    if not key:
        raise InvalidInput(KEY, "an API key in the environment, from `labelwall keys add`", None)
    teacher = RemoteTeacher(url, key, progress=console.progress)
    try:
        budget = teacher.budget()
        if Plan.from_json(budget["plan"]) != plan or budget["unsafe"] != unsafe:
            raise LedgerMismatch(
                "the service has another budget, mechanism, caps or rounds than the configuration. Ask its custodian."
            )
        if known_dataset not in (None, budget["dataset"]):
            raise LedgerMismatch(
                "the run folder's ledger belongs to another data set than the service's. Choose another run_dir."
            )
        if budget["adversary"] != POOLED:
            console.say(f"the certificate holds against {budget['adversary']}")
        yield teacher
    finally:
        teacher.close()
