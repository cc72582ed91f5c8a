"""The entry of a run: it resolves the configuration, records it, and hands each side its part.

Rooms below take the parts alone.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from ...student.asking.features import PublicFeatures, digest, first_extractor
from ...student.asking.public_rows import PublicRows
from ...student.devices import require_devices
from ...student.learning import check_student
from ...teacher.accounting.accountant import require_affordable
from ...teacher.noise.entropy import Entropy
from ...wall.console import Console
from ...wall.datasets.config import PublicData
from ...wall.datasets.sources import describe, read_public
from ...wall.errors import BudgetRefused, InvalidInput, listed
from ...wall.files import write_file
from ...wall.labels import LabelSpace
from ..config.config import Config
from ..config.own import CURES, large
from ..config.private_side import solved_line, solved_numbers
from ..config.settings import to_yaml
from .places import custodian_place
from .rounds import Schedule, run_rounds
from .run_folder import RunFolder, resumed
from .summary import Summary
from .teachers import teacher_of


def run(
    config: Config,
    run_dir: Path,
    *,
    entropy: Entropy,
    console: Console,
    isolate: bool = False,
    custodian: Path | None = None,
    update: bool = False,
) -> Summary:
    """Run, or resume, an experiment.

    No data is read unless the plan is affordable. A killed run continues where it stopped, and pays
    for nothing twice.

    ``update``: the next period is asked, once all that began are finished.
    ``isolate``: the teacher runs in a child process, and this process opens no private file.
    ``custodian``: the private side's directory; ``custodian_place`` where it is None.

    Raises BudgetRefused, LedgerMismatch, InvalidInput, MissingData.
    """
    folder = RunFolder(run_dir)
    config = resumed(config, folder)
    require_affordable(config.plan())
    require_devices(config.student)
    torch.set_num_threads(config.threads)
    folder.create()
    settings, task = config.public_side(), describe(config.data)
    public = read_public(config.data, partial(console.progress, "reading public rows"))
    guess = config.records(len(public.inputs))
    for line in filter(None, (large(config.budget.delta, guess), *_untested(public, task.labels))):
        console.say(line)
    extractor = first_extractor(settings, task, public.inputs)
    check_student(config.student, extractor, task)  # fails early
    rows = {"public": public.inputs, "test": public.test_inputs}
    features = PublicFeatures(settings, rows, console.progress)
    directory = custodian or custodian_place(config, run_dir)
    side = replace(config.private_side(), custodian_dir=str(directory))
    known = folder.ledger_state().dataset if folder.ledger.exists() else None
    shared = side, task, entropy, console, known
    with teacher_of(*shared, left_out=folder.left_out, isolate=isolate) as teacher:
        teacher.export(folder.ledger)
        period = _period(folder, len(config.rounds), public, update)
        config = _fixed(config, folder, console)
        write_file(folder.config, to_yaml(config))
        learned = public.labels if settings.taught else None
        if learned is not None:  # no metric is of rows that were trained on
            public = replace(public, labels=None)
        public_rows = PublicRows(
            settings=settings,
            task=task,
            data=public,
            first=extractor,
            features=features,
            learned=learned,
        )
        schedule = Schedule(
            rounds=[r for r in config.asked_rounds(config.seed) if r.period <= period],
            scoring=config.asked_score(period),
        )
        if config.budget.periods > 1:
            console.say(f"period {period} of {config.budget.periods}")
        return run_rounds(teacher, public_rows, schedule, folder, console)


def _period(folder: RunFolder, rounds: int, public: PublicData, update: bool) -> int:
    """The last period that the folder began, of so many ``rounds`` each, or, to ``update`` one that
    has its report, the next. Raises BudgetRefused where there is none, InvalidInput for other
    public rows.
    """
    known, periods = len(folder.periods()), folder.plan().periods
    begun = (folder.path / f"round_{known * rounds + 1}").exists()  # and killed
    last = known + (begun or not known or (update and folder.report.exists()))
    if last > periods:
        raise BudgetRefused(
            f"no period is left of the {periods} that the plan has (budget.periods). It was "
            "fixed before the first release; another --custodian_dir opens another budget, and "
            "both add up."
        )
    if last > 1 and folder.periods()[0].public_sha256 != digest(public.inputs):
        raise InvalidInput("public", "the rows of the first period, in their order", "others")
    return last


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
            lines.append(f"no test row is of {listed(unseen)}: no accuracy tells of these classes")
    return lines


def _fixed(config: Config, folder: RunFolder, console: Console) -> Config:
    """With every number that the budget decided, as the ledger fixed it before its first release.

    Another version may have solved it otherwise, which is said.
    """
    plan = folder.plan()
    require_affordable(plan)
    fixed = config.recorded(plan)
    if fixed != config.solved():
        console.say(f"as the ledger fixed it, {solved_line(solved_numbers(config, fixed))}")
    return fixed
