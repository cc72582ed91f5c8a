"""The choice of `mechanism: auto` before a run, fixed in the run's folder."""

from __future__ import annotations

import json
from pathlib import Path

from ...teacher.private_files import make_private
from ..config.config import Config
from ..config.settings import to_yaml
from ..run.console import Console
from ..run.run_folder import RunFolder


def decided(config: Config, folder: RunFolder, custodian: Path, console: Console) -> Config:
    """``config`` with a mechanism: its own, the one that the folder records, or the best found.

    What is found is written to chosen.yaml, with the table of candidates in candidates.json, so
    that a resumed run does not search again. Raises InvalidInput (also for folders that can not be
    written), MissingData (public rows), BudgetRefused, and LabelwallError where the folder holds
    another run.
    """
    if not config.open:
        return config
    folder.resumed(config)  # raises where the folder holds another run
    known = folder.decided(config)
    if not known.open:
        return known
    from .optimise import (  # takes a second
        Request,
        best_plan,
        candidates,
        describe_candidates,
        reason,
    )

    folder.create()
    if config.teacher is None:
        make_private(custodian)  # a search takes minutes: fails before it
    console.say("auto: rehearsing mechanisms and features on public rows")
    answer = best_plan(config, Request(frontier=False), console)
    console.show(candidates(answer))
    console.say(reason(answer))
    table = json.dumps(describe_candidates(answer), indent=2)
    folder.write_text(folder.candidates, table)
    folder.write_text(folder.choice, to_yaml(answer.config))
    return answer.config
