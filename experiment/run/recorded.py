"""The configuration that a run folder records: the same run continues, another one is refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from ...wall.errors import LabelwallError
from ...wall.format import FORMAT
from ..config.config import Config
from ..config.settings import load_config
from .budgets import place_of
from .run_folder import RunFolder

# What may change between a run and its resumption.
NOT_IDENTITY = (
    "format",
    "threads",
    "workers",
    "batch_size",
    "device",
    "teacher",
    "expected_records",  # which decides nothing once a method is chosen
)
RUNS = Path("runs")


def default_run_dir(config: Config, name: str, say: Callable[[str], None]) -> Path:
    """runs/NAME: a new folder, or that of the same run, which continues.

    ``name``: of the data or its configuration; the source's where it is empty. Says so
    where there are runs of other settings: each has a ledger of its own, and what they release
    adds up.
    """
    name, own = name or config.data.source, place_of(config.data) is not None
    numbered = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    for tried in (RUNS / entry for entry in numbered):
        folder = RunFolder(tried)
        if not folder.config.exists() or not _differing(config, folder):
            break
        if own:  # which have one ledger
            continue
        say(
            f"{tried} holds a run with other settings. Where its private records are these, the "
            "epsilons of both add up."
        )
    return tried


def resumed(config: Config, folder: RunFolder) -> Config:
    """With the numbers that the folder records, where ``config`` leaves them to the budget.

    Raises LabelwallError where another configuration is recorded.
    """
    config = decided(config, folder)
    if not folder.config.exists():
        return config
    if differing := _differing(config, folder):
        raise LabelwallError(
            f"{folder.path} holds a run with other settings ({', '.join(differing)}). "
            "Choose another --run_dir."
        )
    return config.as_given(load_config(folder.config))


def decided(config: Config, folder: RunFolder) -> Config:
    """With the method that the folder records, where ``config`` leaves it open.

    Before the run began, only where it was chosen for the same other settings.
    """
    if not config.open or not folder.choice.exists():
        return config
    known = load_config(folder.choice)
    chosen = config.chosen(known)
    same = _json(known) == _json(chosen) and known.expected_records == config.expected_records
    return chosen if same or folder.config.exists() else config


def record(config: Config, folder: RunFolder) -> None:
    """Create the folder and record the resolved configuration, where none is recorded."""
    folder.create()
    if not folder.config.exists():
        settings = json.loads(json.dumps({"format": FORMAT, **asdict(config)}))
        folder.write_text(folder.config, yaml.safe_dump(settings, sort_keys=False))


def _differing(config: Config, folder: RunFolder) -> list[str]:
    """Settings in which the recorded configuration is another."""
    known = load_config(folder.config)
    before, now = _json(known), _json(decided(config, folder).as_given(known))
    return [name for name in now if before[name] != now[name]]


def _json(config: Config) -> dict[str, Any]:
    """The settings that may not change."""
    settings = json.loads(json.dumps(asdict(config)))
    return {name: value for name, value in settings.items() if name not in NOT_IDENTITY}
