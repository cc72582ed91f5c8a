"""SIGKILL a whole run before each of its ledger commits, then give the same command again."""

import contextlib
import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import matplotlib
import sqlalchemy as sa

import labelwall.experiment.report.report
import labelwall.experiment.run.entry  # noqa: F401 - loaded before the forks
from labelwall import pipeline
from tests import ledgers
from tests.experiment import tiny
from tests.experiment.checks import QUICK
from tests.programs.kill_runner import forked, sweep

COMMAND = ["run", "--config", "config.yaml", "--run_dir", "out", "--quiet", *QUICK]


def run(kill_at: int = 0) -> int:
    """Run the command, and die before its ``kill_at``-th commit; the exit status."""
    commits = iter(range(1, sys.maxsize))

    def commit(_: object) -> None:
        if next(commits) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sa.event.listen(sa.Engine, "commit", commit)
    with contextlib.redirect_stdout(io.StringIO()):
        return pipeline.main(COMMAND)


def look(path: Path) -> tuple[dict[str, dict[str, int]], int]:
    """(released results by identity, releases charged) of a ledger's file, read without our own
    code."""
    results: dict[str, dict[str, int]] = {}
    releases, charged = {}, 0
    begun = path.exists() and path.stat().st_size > 0  # not killed as it began
    for seq, (kind, entry) in enumerate(ledgers.parsed(path) if begun else []):
        if kind == "charge":
            charged += entry["count"]
            releases[seq] = entry["release"]
        elif kind == "release":
            for identity, value in entry["results"].items():
                results.setdefault(identity, {})[releases[entry["charge"]]] = value
    return results, charged


def kill(folder: Path, point: int) -> tuple[bool, dict[str, Any]]:
    tiny.write(folder)
    os.chdir(folder)
    status = forked(lambda: run(point))
    live = folder / "data.npz.custodian" / "ledger.sqlite"
    before, _ = look(live)
    resumed = forked(run)
    after, charged = look(live)
    summary = json.loads((folder / "out" / "summary.json").read_text())
    with contextlib.redirect_stdout(io.StringIO()):
        audited = pipeline.main(["audit", "out/ledger.sqlite"]) if status else 0
    return status != -signal.SIGKILL, {
        "status": status,
        "resumed": resumed,
        "kept": all(after[key].items() >= values.items() for key, values in before.items()),
        "exported": look(folder / "out" / "ledger.sqlite")[0] == after,
        "again": charged - sum(len(values) for values in after.values()),
        "asked": sum(entry["asked"] for entry in summary["rounds"]),
        "audited": audited,
    }


if __name__ == "__main__":
    matplotlib.use("Agg")
    sweep(kill)
