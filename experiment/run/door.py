"""What is decided of a run before it asks: by its settings, by its folder and by its ledger."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from itertools import dropwhile
from pathlib import Path
from typing import Any

from ...student.student_config import PRETRAINED
from ...student.tuning import FEW_PUBLIC
from ...teacher.accounting.accountant import require_affordable
from ...teacher.custody.private_settings import PrivateSide
from ...teacher.custody.recorded import recorded
from ...teacher.custody.schedule import Schedule
from ...teacher.custody.solver import solved, solved_line, solved_numbers
from ...wall.computing import Computing
from ...wall.console import Console
from ...wall.datasets.sources import read_public
from ...wall.errors import BudgetRefused, InvalidInput, LabelwallError
from ...wall.questions import Round
from ..config.config import Config
from ..config.settings import load_config, may_become
from .expected import refining
from .run_folder import RunFolder
from .tuning import SPARE

# What may change between a run and its resumption.
NOT_IDENTITY = {"teacher", *(entry.name for entry in fields(Computing))}
NOT_IDENTITY |= {"expected_records"}  # once a method is chosen it decides whether a run stops


def resumed(config: Config, folder: RunFolder) -> Config:
    """With the method and the numbers that the folder records, where ``config`` leaves them open.

    Before the run began, only those of the same other settings. Raises LabelwallError where another
    configuration is recorded.
    """
    config = config.settled()
    if not folder.config.exists():
        return config
    known, begun = load_config(folder.config), folder.ledger.exists()
    known = known.scheduled(solved(known.schedule))
    chosen = config.chosen(known) if config.open else config
    if config.open and not may_become(config.mechanism, known.mechanism):
        chosen = replace(chosen, mechanism=config.mechanism)
    chosen = chosen.scheduled(recorded(chosen.schedule, known.schedule.plan()))
    before, now = _json(known), _json(chosen)
    differing = [name for name in now if before[name] != now[name]]
    if differing and begun:
        raise LabelwallError(
            f"{folder.path} holds a run with other settings ({', '.join(differing)}). Choose "
            "another --run_dir. Budgets of the same private records add up."
        )
    same = not differing and known.expected_records == config.expected_records
    return chosen if begun or same else config


def within(
    minutes: float, default: Config, refined: Config, folder: RunFolder | None, console: Console
) -> Config:
    """The ``refined`` configuration if its student learns in so many ``minutes``, or the default.

    What a run ``folder`` records stays. Public rows alone are read.
    """
    if folder is not None and folder.config.exists():
        known = load_config(folder.config).student.backbone
        console.say(f"{folder.path} has decided what learns, student.backbone: {known}")
        return refined if known == PRETRAINED else default
    if (rows := len(read_public(refined.data).inputs)) < FEW_PUBLIC:
        console.say(f"{rows} public images are too few to refine: {FEW_PUBLIC} are needed")
        return default
    needed = refining(refined.public_side(), len(refined.rounds)) / 60
    if needed <= minutes:
        console.say(f"refining takes about {needed:.1f} minutes, so it is done")
        return refined
    more = math.ceil(SPARE * needed)
    console.say(f"refining would take about {needed:.1f} minutes; a limit of {more} allows it")
    return default


def _json(config: Config) -> dict[str, Any]:
    settings = json.loads(json.dumps(asdict(config)))
    return {name: value for name, value in settings.items() if name not in NOT_IDENTITY}


def placed(side: PrivateSide, run_dir: Path, custodian: Path | None = None) -> PrivateSide:
    """The private side with its directory: the ``custodian`` that a caller names, the settings',
    one beside own rows, or beside the run folder. Without one where services answer: each has its
    own.
    """
    if side.teacher is not None:
        return side
    from ...teacher.custody.places import beside_rows  # which opens ledgers

    place = custodian or beside_rows(side).directory or f"{run_dir}.custodian"
    return replace(side, custodian_dir=str(place))


def fixed(given: Schedule, folder: RunFolder, console: Console) -> Schedule:
    """With every number that the budget decided, as the ledger fixed it before its first release.

    Another version may have solved it otherwise, which is said. Raises BudgetRefused for more than
    the budget.
    """
    plan = folder.plan
    require_affordable(plan)
    known = recorded(given, plan)
    if known != solved(given):
        console.say(f"as the ledger fixed it, {solved_line(solved_numbers(given, known))}")
    return solved(known)


def rounds_of(folder: RunFolder, rounds: Sequence[Round], public: str, update: bool) -> list[Round]:
    """The plan's ``rounds`` up to the last period that the folder began or, to ``update`` one that
    has its report, up to the next.

    First rounds all of whose releases were charged and lost by a kill are over: the others are
    numbered without them. Raises LabelwallError where no others are left of these periods,
    BudgetRefused where there is no next period, InvalidInput for other ``public`` rows.
    """
    state, finished, periods = folder.ledger_state(), folder.periods(), folder.plan.periods
    asked = [*dropwhile(lambda planned: state.lost_whole(planned.slot), rounds)]
    over = asked[0].period - 1 if asked else periods
    known = finished[-1].period if finished else over
    done = sum(planned.period <= known for planned in asked)
    begun = (folder.path / f"round_{done + 1}").exists()  # and killed
    if over and not finished:  # that folder may be of a round that is over
        begun = any(planned.slot == slot for planned in asked for slot, _ in state.spent)
    after = not finished or folder.report.exists()
    last = known + 1 if begun or not known or (update and after) else known
    if last > periods:
        raise BudgetRefused(
            f"no period is left of the {periods} that the plan has (budget.periods). It was "
            "fixed before the first release; another --custodian_dir opens another budget, and "
            "both add up."
        )
    if finished and finished[0].public_sha256 != public:
        raise InvalidInput("public", "the rows of the first period, in their order", "others")
    asked = [planned for planned in asked if planned.period <= last]
    if not asked:
        from .lines import lost_line  # torch

        raise LabelwallError(
            f"{lost_line(state.lost())}: all of period {last} of {periods}, which is over. "
            "`labelwall update` asks the next one, if there is one; another --custodian_dir "
            "opens another budget, and both add up."
        )
    return [replace(planned, number=number) for number, planned in enumerate(asked, start=1)]
