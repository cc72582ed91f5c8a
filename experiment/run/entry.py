"""The entry of a run: it decides, splits the configuration, and hands each side its part.

Rooms below take the parts alone.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from ...student.asking.features import digest
from ...student.several_devices import require_devices
from ...teacher.accounting.accountant import require_affordable
from ...wall.console import Console
from ...wall.files import write_file
from ..config.config import Config
from ..config.settings import to_yaml
from .door import fixed, placed, resumed, rounds_of
from .expected import tried
from .public_side import public_rows
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
    ``custodian``: the private side's directory; ``custodian_place`` where it is None.

    Raises BudgetRefused, LedgerMismatch, InvalidInput, MissingData.
    """
    folder = RunFolder(run_dir)
    config = resumed(config, folder)
    private, schedule = placed(config.private_side(), run_dir, custodian), config.schedule
    require_affordable(private.plan())
    settings = config.public_side()
    require_devices(settings.student)
    folder.create()
    with console.timed("reading"):
        public = public_rows(settings, private.budget.delta, console)
    private.evaluate.require_two(public.task.labels.kind, public.task.labels.names)
    known = folder.ledger_state().dataset if folder.ledger.exists() else None
    with teacher_of(
        private,
        public.task,
        entropy,
        console,
        known,
        left_out=folder.left_out,
        isolate=isolate,
    ) as teacher:
        teacher.export(folder.ledger)
        schedule = fixed(schedule, folder, console)
        given = schedule.asked_rounds(public.settings.seed)
        rounds = rounds_of(folder, given, digest(public.data.inputs), update)
        period = rounds[-1].period
        write_file(folder.config, to_yaml(config.scheduled(schedule)))
        if schedule.budget.periods > 1:
            console.say(f"period {period} of {schedule.budget.periods}")
        score = schedule.asked_score(period)
        numbers = [r.number for r in rounds if r.period == period]
        console.expect(lambda: tried(settings, public.task, public.data, numbers, public.first))
        return run_rounds(teacher, public, rounds, score, folder, console)
