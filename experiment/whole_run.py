"""A run from its first step to its report, and the updates that its plan keeps a part for."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..teacher.accounting.accountant import require_affordable
from ..wall.console import Console
from ..wall.errors import BudgetRefused, LabelwallError, MissingData, reason_of
from ..wall.files import digest, write_file
from .config.config import Config
from .config.settings import load_config, to_yaml
from .run.door import fixed, placed, resumed, rounds_of
from .run.expected import guessed
from .run.run_folder import RunFolder
from .run.served import served, service_plan
from .run.summary import Summary
from .run.teachers import teacher_of
from .run.tuning import REHEARSAL

if TYPE_CHECKING:
    from ..teacher.noise.entropy import Entropy


def run(
    config: Config,
    run_dir: Path,
    *,
    console: Console,
    entropy: "Entropy | None" = None,
    isolate: bool = False,
    custodian: Path | None = None,
    update: bool = False,
) -> Summary:
    """Run, or resume, an experiment.

    The method is chosen first where the configuration leaves it open, then the price is said, then
    private rows are asked about. No data is read unless the plan is affordable. A killed run
    continues where it stopped, and pays for nothing twice.

    ``entropy``: as of ``teacher_of``, by default the system's. ``isolate``: this process opens no
    private file. ``custodian``: the private side's directory, as of ``placed``. ``update``: with
    the next period, once all that began are finished.

    Raises BudgetRefused, LedgerMismatch, InvalidInput, MissingData.
    """
    folder, private = RunFolder(run_dir), placed(config.private_side(), run_dir, custodian)
    if not isolate and config.teacher is None:  # else another process alone looks into it
        from ..teacher.custody.places import require_budget, require_there
        from ..teacher.noise.entropy import SystemEntropy

        require_budget(private)
        if not config.open:  # no data is read unless the plan is affordable
            require_affordable(private.plan())
        require_there(config.data)  # before a rehearsal
        entropy = entropy or SystemEntropy()
    config = _chosen(config, folder, private.directory, console)
    private = replace(config.private_side(), custodian_dir=private.custodian_dir)
    from ..student.several_devices import require_devices  # torch, as below
    from .run.expected import tried
    from .run.rounds import run_rounds
    from .run.rows import public_rows, require_narrow

    public = config.public_side()
    require_devices(public.student)
    folder.create()
    with console.timed("reading"):
        rows = public_rows(public, private.budget.delta, console)
    private.evaluate.require_two(rows.task.labels.kind, rows.task.labels.names)
    require_narrow(private.schedule, rows)
    known = folder.ledger_state().dataset if folder.ledger.exists() else None
    with teacher_of(
        private, rows.task, entropy, console, known, left_out=folder.left_out, isolate=isolate
    ) as teacher:
        teacher.export(folder.ledger)
        schedule = fixed(config.schedule, folder, console)
        given = schedule.asked_rounds(public.seed)
        rounds = rounds_of(folder, given, digest(rows.data.inputs), update)
        period = rounds[-1].period
        write_file(folder.config, to_yaml(config.scheduled(schedule)))
        if schedule.budget.periods > 1:
            console.say(f"period {period} of {schedule.budget.periods}")
        finished = len(folder.results(len(rounds)))
        numbers = [r.number for r in rounds[finished:] if r.period == period]
        console.expect(lambda: tried(public, rows.task, rows.data, numbers, rows.first))
        score = schedule.asked_score(period)
        summary = run_rounds(teacher, rows, rounds, score, folder, console)
    folder.hide_times()
    return summary


def _chosen(config: Config, folder: RunFolder, custodian: Path | None, console: Console) -> Config:
    """With the method that is open chosen, and its price said. Raises as ``run``."""
    from .plan.show import announce, tell_columns

    tell_columns(config.data, config.open, console)
    given, config = config, resumed(config, folder)
    if config.open and config.teacher is not None:
        config = served(config, *service_plan(config.teacher)).settled()
        if (costs := config.budget.epsilon) < (most := given.budget.epsilon):
            line = f"the service's plan costs epsilon {costs:g}, below the budget of {most:g}"
            console.say(line)
    elif config.open:
        console.say("auto: rehearsing mechanisms and features on public rows")
        from .plan.search import decided  # torch, which takes seconds: after the first line

        assert custodian is not None
        with console.timed("rehearsal"):
            config = decided(config, folder, custodian, console)
    given = config if given.open else given
    announce(config.data, given.schedule, config.schedule, console)
    return config


def train(
    config: Config, run_dir: Path, console: Console, isolate: bool = False, update: bool = False
) -> Summary:
    """``run`` to its report, with a bar for the whole. Raises as ``run``."""
    folder = RunFolder(run_dir)
    known = load_config(folder.config) if folder.config.exists() else config
    rehearsal = REHEARSAL if known.open else 0.0
    with console.whole(guessed(rounds_left(folder, known, update), rehearsal)):
        summary = run(config, run_dir, console=console, isolate=isolate, update=update)
        from .report.report import write_report  # torch, as above
        from .run.lines import period_lines, seldom_found

        for line in [*period_lines(summary), *seldom_found(summary)]:
            console.say(line)
        with console.timed("report"):
            write_report(run_dir)
    return summary


def rounds_left(folder: RunFolder, config: Config, update: bool) -> range:
    """Numbers of the rounds that a run still asks: of the period that it began, or begins."""
    count = len(config.rounds)
    done = len(folder.results(count * config.budget.periods))
    begins = update or done == 0 or done % count > 0
    return range(done + 1, count * (done // count + 1) + 1 if begins else done + 1)


def update(run_dir: Path, console: Console, isolate: bool = False) -> Summary:
    """Ask about the private rows as they are now, by the next period of a run's plan.

    A killed update continues to its report, and pays for nothing twice; after its report the next
    one follows, whether or not rows changed. Raises as ``train``, BudgetRefused where no period is
    left.
    """
    folder = RunFolder(run_dir)
    if not folder.config.exists():
        raise MissingData(f"`run_dir` must be the folder of a run. Found {str(run_dir)!r}.")
    config = load_config(folder.config)
    if config.budget.periods == 1:
        raise BudgetRefused(
            "this run has no periods: `labelwall run --periods 12` keeps parts of the budget for "
            "updates, from the first release on."
        )
    return train(config, run_dir, console, isolate, update=True)


@contextmanager
def owner_alone() -> Iterator[None]:
    """A call from Python: files that are written meanwhile are their owner's alone, OSError is a
    LabelwallError, and errors name arguments as Python does.
    """
    before = os.umask(0o077)
    try:
        yield
    except LabelwallError as error:
        error.args = (in_python(str(error)),)
        raise
    except OSError as error:
        raise LabelwallError(reason_of(error)) from error
    finally:
        os.umask(before)


def in_python(text: str) -> str:
    """What an error says of options, of Python's arguments: --epsilon 1 is epsilon=1."""
    text = text.replace("--custodian_dir", "custody").replace("the same command", "the same call")
    return re.sub(r"--([a-z_]+)(?: (?=[\d.]+))?", lambda m: m[1] + "=" * m[0].endswith(" "), text)
