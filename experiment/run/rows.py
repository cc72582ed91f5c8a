"""The entry of a run: it decides, splits the configuration, and hands each side its part.

The configuration ends here: rooms below take the private or the public side's settings.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...student.asking.public_rows import PublicRows
from ...student.learning import check_student
from ...student.public_settings import PublicSide
from ...student.several_devices import require_devices
from ...teacher.accounting.accountant import require_affordable
from ...wall.computing import free_threads
from ...wall.console import Console
from ...wall.datasets.data_config import PublicData
from ...wall.datasets.sources import describe, read_public
from ...wall.errors import InvalidInput, listed
from ...wall.files import digest, write_file
from ...wall.labels import LabelSpace
from ...wall.matrices import MAX_DIMENSIONS
from ..config.config import Config
from ..config.own import CURES, large
from ..config.settings import to_yaml
from .door import fixed, placed, resumed, rounds_of
from .expected import tried
from .rounds import run_rounds
from .run_folder import RunFolder
from .summary import Summary
from .teachers import teacher_of

if TYPE_CHECKING:
    from ...teacher.noise.entropy import Entropy


def run(
    config: Config,
    run_dir: Path,
    *,
    entropy: "Entropy | None",
    console: Console,
    isolate: bool = False,
    custodian: Path | None = None,
    update: bool = False,
) -> Summary:
    """Run, or resume, an experiment.

    No data is read unless the plan is affordable. A killed run continues where it stopped, and pays
    for nothing twice.

    ``update``: the next period is asked, once all that began are finished.
    ``entropy``, ``isolate``: as of ``teacher_of``; isolated, this process opens no private file.
    ``custodian``: the private side's directory, as of ``placed``.

    Raises BudgetRefused, LedgerMismatch, InvalidInput, MissingData.
    """
    folder = RunFolder(run_dir)
    config = resumed(config, folder)
    private, public = placed(config.private_side(), run_dir, custodian), config.public_side()
    require_affordable(private.plan())
    require_devices(public.student)
    folder.create()
    with console.timed("reading"):
        rows = public_rows(public, private.budget.delta, console)
    private.evaluate.require_two(rows.task.labels.kind, rows.task.labels.names)
    _require_narrow(config, rows)
    known = folder.ledger_state().dataset if folder.ledger.exists() else None
    with teacher_of(
        private, rows.task, entropy, console, known, left_out=folder.left_out, isolate=isolate
    ) as teacher:
        teacher.export(folder.ledger)
        final_schedule = fixed(config.schedule, folder, console)
        given = final_schedule.asked_rounds(public.seed)
        rounds = rounds_of(folder, given, digest(rows.data.inputs), update)
        period = rounds[-1].period
        write_file(folder.config, to_yaml(config.scheduled(final_schedule)))
        if final_schedule.budget.periods > 1:
            console.say(f"period {period} of {final_schedule.budget.periods}")
        score = final_schedule.asked_score(period)
        finished = len(folder.results(len(rounds)))
        numbers = [r.number for r in rounds[finished:] if r.period == period]
        console.expect(lambda: tried(public, rows.task, rows.data, numbers, rows.first))
        summary = run_rounds(teacher, rows, rounds, score, folder, console)
    folder.hide_times()
    return summary


def _require_narrow(config: Config, rows: PublicRows) -> None:
    """Raise InvalidInput for vectors' features that no round projects and no teacher takes."""
    if len(rows.task.input_shape) > 1 or config.whiten:
        return
    width = rows.features.plain(rows.first).shape[1]
    for mechanism in config.schedule.mechanisms() if width > MAX_DIMENSIONS else ():
        basis = mechanism.query_form.basis
        if not mechanism.scores and (basis is None or not basis.count or basis.kind != "axes"):
            rule = f"at least 1 where {mechanism.kind} sees more than {MAX_DIMENSIONS} features"
            raise InvalidInput("whiten", rule, 0, f"A row has {width}.")


def public_rows(settings: PublicSide, delta: float, console: Console) -> PublicRows:
    """The rows with their features and student. Says what a large ``delta`` means, and what the
    test rows do not tell. Raises InvalidInput, MissingData.
    """
    torch.set_num_threads(free_threads(settings.threads))
    task = describe(settings.data)
    public = read_public(settings.data, partial(console.progress, "reading public rows"))
    if warning := large(delta, settings.records(len(public.inputs))):
        console.say(warning)
    for line in _untested(public, task.labels):
        console.say(line)
    rows = PublicRows.of(settings, task, public, console.progress, test=public.test_inputs)
    check_student(settings.student, rows.first, task)  # fails early
    return rows


def _untested(public: PublicData, labels: LabelSpace) -> list[str]:
    """What the test rows do not tell, in lines."""
    if not len(public.test_inputs):
        return [f"no test rows, so no accuracy. {CURES['test']}"]
    count, lines = len(public.test_inputs), list[str]()
    if public.held_out:
        lines = [f"no test rows: {count} of the labelled public ones are held out, and are these"]
    if labels.kind == "class":
        seen = {*public.test_labels.tolist()}
        if unseen := [name for code, name in enumerate(labels.names) if code not in seen]:
            lines.append(
                f"there are no test rows of {listed(unseen)}, so accuracy says nothing about these "
                "classes"
            )
    return lines
