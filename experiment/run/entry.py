"""The entry of a run: it decides, splits the configuration, and hands each side its part."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...student.asking.features import digest
from ...student.public_settings import PublicSide
from ...student.several_devices import require_devices
from ...teacher.accounting.accountant import require_affordable
from ...teacher.custody.private_settings import PrivateSide
from ...teacher.custody.schedule import Schedule
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


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What each side needs of a configuration, and what is asked and paid for.

    The configuration ends here: rooms below take one of these.
    """

    private: PrivateSide
    public: PublicSide
    schedule: Schedule


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
    parts = Parts(
        private=placed(config.private_side(), run_dir, custodian),
        public=config.public_side(),
        schedule=config.schedule,
    )
    require_affordable(parts.private.plan())
    require_devices(parts.public.student)
    folder.create()
    with console.timed("reading"):
        rows = public_rows(parts.public, parts.private.budget.delta, console)
    parts.private.evaluate.require_two(rows.task.labels.kind, rows.task.labels.names)
    known = folder.ledger_state().dataset if folder.ledger.exists() else None
    with teacher_of(
        parts.private,
        rows.task,
        entropy,
        console,
        known,
        left_out=folder.left_out,
        isolate=isolate,
    ) as teacher:
        teacher.export(folder.ledger)
        final_schedule = fixed(parts.schedule, folder, console)
        given = final_schedule.asked_rounds(parts.public.seed)
        rounds = rounds_of(folder, given, digest(rows.data.inputs), update)
        period = rounds[-1].period
        write_file(folder.config, to_yaml(config.scheduled(final_schedule)))
        if final_schedule.budget.periods > 1:
            console.say(f"period {period} of {final_schedule.budget.periods}")
        score = final_schedule.asked_score(period)
        numbers = [r.number for r in rounds if r.period == period]
        console.expect(lambda: tried(parts.public, rows.task, rows.data, numbers, rows.first))
        return run_rounds(teacher, rows, rounds, score, folder, console)
