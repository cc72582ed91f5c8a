"""SIGKILL a whole run before each of its ledger commits, then give the same command again; prints
one JSON line a kill.

Run in a process of its own: children are forked from a process that has everything loaded and no
threads.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sqlite3
import sys
from pathlib import Path

import matplotlib
import sqlalchemy as sa
import torch

import labelwall.experiment.report.report
import labelwall.experiment.run.rounds  # noqa: F401 - loaded before the forks
from labelwall import pipeline
from tests.experiment import tiny
from tests.experiment.checks import QUICK

COMMAND = ["run", "--config", "config.yaml", "--run_dir", "out", "--quiet", *QUICK]


def child(kill_at: int | None) -> int:
    """Run the command in a fork that dies before its ``kill_at``-th commit; the exit status."""
    process = os.fork()
    if process == 0:
        count = 0

        def commit(_: object) -> None:
            nonlocal count
            count += 1
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

        sa.event.listen(sa.Engine, "commit", commit)
        with contextlib.redirect_stdout(io.StringIO()):
            os._exit(pipeline.main(COMMAND))
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def look(path: Path) -> tuple[dict[str, dict[str, int]], int, int]:
    """(released results by identity, releases charged, entries) of a ledger file, read without our
    own code."""
    results: dict[str, dict[str, int]] = {}
    releases, charged, count = {}, 0, 0
    if path.exists():
        with sqlite3.connect(path) as connection:
            for seq, kind, body in connection.execute(
                "SELECT seq, kind, body FROM entries ORDER BY seq"
            ):
                count, entry = count + 1, json.loads(body)
                if kind == "charge":
                    charged += entry["count"]
                    releases[seq] = entry["release"]
                elif kind == "release":
                    for identity, value in entry["results"].items():
                        results.setdefault(identity, {})[releases[entry["charge"]]] = value
    return results, charged, count


def main(root: Path) -> None:
    torch.set_num_threads(1)
    matplotlib.use("Agg")
    kill_at, status = 1, -signal.SIGKILL
    while status == -signal.SIGKILL:
        folder = root / str(kill_at)
        tiny.write(folder)
        os.chdir(folder)
        status = child(kill_at)
        live = folder / "data.npz.custodian" / "ledger.sqlite"
        before, _, _ = look(live)
        resumed = child(None)
        after, charged, _ = look(live)
        exported, _, _ = look(folder / "out" / "ledger.sqlite")
        summary = json.loads((folder / "out" / "summary.json").read_text())
        kept = all(after[identity].items() >= values.items() for identity, values in before.items())
        asked = sum(entry["asked"] for entry in summary["rounds"])
        audited = pipeline.main(["audit", "out/ledger.sqlite"]) if status else 0
        line = {
            "kill_at": kill_at,
            "status": status,
            "resumed": resumed,
            "kept": kept,
            "exported": exported == after,
        }
        line |= {
            "again": charged - sum(len(v) for v in after.values()),
            "asked": asked,
            "audited": audited,
        }
        print("KILL " + json.dumps(line), flush=True)
        kill_at += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))
