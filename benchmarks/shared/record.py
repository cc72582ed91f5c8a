"""Results as JSON files, which docs/results.md is made of (benchmarks/README.md has the form)."""

import argparse
import json
import platform
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"


def add_record(parser: argparse.ArgumentParser) -> None:
    """The option `--record`, by which a benchmark writes its result."""
    help_ = "write the result into benchmarks/results, for docs/results.md"
    parser.add_argument("--record", action="store_true", help=help_)


def record(
    name: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    keys: int,
    seeds: Sequence[int] | str,
) -> None:
    """Write a run of this command: a row replaces the one that agrees in the first ``keys`` cells.

    Raises ValueError if the file has other columns.
    """
    path = RESULTS / f"{name}.json"
    known = {"setting": "", "columns": [*columns], "runs": []}
    if path.exists():
        known = json.loads(path.read_text())
    if known["columns"] != [*columns]:
        raise ValueError(f"{path} has the columns {known['columns']}, not {[*columns]}")
    measured = {tuple(row[:keys]) for row in rows}
    runs, place = [], None
    for run in known["runs"]:
        kept = [row for row in run["rows"] if tuple(row[:keys]) not in measured]
        if place is None and len(kept) < len(run["rows"]):
            place = len(runs)
        if kept:
            runs.append(run | {"rows": kept})
    about = {"command": command(), "commit": commit(), "seeds": seeds, "machine": machine()}
    new = about | {"rows": [[*row] for row in rows]}
    runs.insert(len(runs) if place is None else place, new)
    path.write_text(dumps(known | {"runs": runs}))


def percent(shares: Sequence[float | None]) -> float | None:
    """The median of shares in percent, None where half of them are unknown."""
    known = [share for share in shares if share is not None]
    if 2 * len(known) <= len(shares):
        return None
    return round(100 * statistics.median(known), 1)


def command() -> str:
    """This command, from the repository's root, without `--record`."""
    program = Path(sys.argv[0]).resolve().relative_to(RESULTS.parents[1])
    words = [word for word in sys.argv[1:] if word != "--record"]
    return shlex.join(["python", str(program), *words])


def commit() -> str:
    """The short name of the commit that is checked out, with a mark if code differs from it."""
    code = ("--", ":!benchmarks/results", ":!docs")
    try:
        name = git("rev-parse", "--short", "HEAD")
        return f"{name}-dirty" if git("status", "--porcelain", "-uno", *code) else name
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def git(*words: str) -> str:
    """What git says of this repository."""
    done = subprocess.run(["git", *words], cwd=RESULTS.parents[1], capture_output=True, check=True)
    return done.stdout.decode().strip()


def machine() -> str:
    """The processor's model and the number of its cores, or what the platform says of it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    if not models:
        return platform.processor() or platform.machine()
    return f"{len(models)} cores of {models[0]}"


def dumps(known: dict[str, Any]) -> str:
    """JSON in which a row of the table is a line of the file."""
    text = json.dumps(known, indent=2, ensure_ascii=False)
    innermost = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")

    def one_line(found: re.Match) -> str:
        return f"[{' '.join(line.strip() for line in found[1].splitlines())}]"

    return innermost.sub(one_line, text) + "\n"
