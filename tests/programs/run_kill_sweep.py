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
    commits = iter(range(1, sys.maxsize))

    def commit(_: object) -> None:
        if next(commits) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sa.event.listen(sa.Engine, "commit", commit)
    with contextlib.redirect_stdout(io.StringIO()):
        return pipeline.main(COMMAND)


def kill(folder: Path, point: int) -> tuple[bool, dict[str, Any]]:
    tiny.write(folder)
    os.chdir(folder)
    status = forked(lambda: run(point))
    live = folder / "data.npz.custodian" / "ledger.sqlite"
    begun = live.exists() and live.stat().st_size > 0  # not killed as it began
    before = ledgers.results(live) if begun else {}
    resumed = forked(run)
    after = ledgers.results(live)
    charged = sum(entry["count"] for entry in ledgers.contents(live, "charge"))
    summary = json.loads((folder / "out" / "summary.json").read_text())
    with contextlib.redirect_stdout(io.StringIO()):
        audited = pipeline.main(["audit", "out/ledger.sqlite"]) if status else 0
    return status != -signal.SIGKILL, {
        "status": status,
        "resumed": resumed,
        "kept": before.items() <= after.items(),
        "exported": ledgers.results(folder / "out" / "ledger.sqlite") == after,
        "again": charged - len(after),
        "asked": sum(entry["asked"] for entry in summary["rounds"]),
        "audited": audited,
    }


if __name__ == "__main__":
    matplotlib.use("Agg")
    sweep(kill)
