"""Cells in processes of their own are those of one process, and end with the command."""

import json
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from labelwall import pipeline
from labelwall.experiment.commands.configured import parse_cells
from labelwall.experiment.compare import run_cells
from labelwall.wall.console import Console
from tests.experiment import tiny
from tests.experiment.checks import check_one_error
from tests.experiment.compare.test_compare import COMMAND, CONFIG, REFERENCE
from tests.programs import environment
from tests.seeded_noise import SeededNoise

VOTES, REST = CONFIG.split("  - name: LNMAX")
SGD = "  - name: Linear NoisySGD" + REST.split("Linear NoisySGD")[1].partition("  - name:")[0]
pytestmark = pytest.mark.usefixtures("folder")


class Seeded(SeededNoise):
    """The same noise in every process, of which a ledger does not know."""

    unsafe = False


def compared(out: str, processes: int) -> list[dict]:
    cells, _ = parse_cells([*COMMAND[1:], "--seeds", "0"])
    console = Console(quiet=True)
    _, lines = run_cells.run_cells(
        cells, Path(out), entropy=Seeded(3), console=console, processes=processes
    )
    return [{**line, "cpu_seconds": None} for line in lines]


def test_two_processes_find_what_one_does() -> None:
    Path("compare.yaml").write_text(VOTES + SGD + REFERENCE)
    one, two = (compared(f"by{count}", count) for count in (1, 2))
    assert one == two
    assert len(one) == 3
    ledgers = [Path(f"by{count}.custodian/reverse_knn/epsilon_50/seed_0") for count in (1, 2)]
    assert all((ledger / "ledger.sqlite").exists() for ledger in ledgers)


def test_fewer_cells_run_at_a_time_where_memory_is_short(tmp_path, monkeypatch, capsys) -> None:
    Path("compare.yaml").write_text(CONFIG.split("  - name: reverse kNN")[0] + REFERENCE)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    file = tmp_path / "meminfo"
    monkeypatch.setattr(run_cells, "MEMORY", file)
    for free, expected in [(used, 1), (7 * used, 3), (99 * used, 8)]:
        file.write_text(f"MemTotal: {10**9} kB\nMemAvailable: {free} kB\n")
        assert run_cells._fitting(8) == expected
    file.write_text(f"MemAvailable: {used} kB\n")
    assert pipeline.main([*COMMAND, "--processes", "2"]) == 0
    assert "memory allows 1 of 2 cells at a time" in capsys.readouterr().err
    file.unlink()
    assert run_cells._fitting(8) == 8


def test_an_error_in_a_process_is_the_commands(capsys) -> None:
    Path("compare.yaml").write_text(CONFIG.split("  - name: reverse kNN")[0] + REFERENCE)
    check_one_error([*COMMAND, "--processes", "0"], "`processes` must be a count", capsys)
    tiny.change(public_y=None)
    check_one_error([*COMMAND, "--processes", "2"], "`methods.reference` must be", capsys)


@pytest.mark.slow
def test_processes_end_with_a_command_that_is_killed_or_interrupted() -> None:
    Path("compare.yaml").write_text(VOTES + SGD + REFERENCE)
    stored = Path("out/true_labels/no_privacy/seed_0/result.json")
    for deadly in (signal.SIGINT, signal.SIGKILL):
        command = [sys.executable, "-m", "labelwall.pipeline", *COMMAND, "--processes", "2"]
        begun = subprocess.Popen(
            command, env=environment(), stderr=subprocess.PIPE, text=True, preexec_fn=heeds_ctrl_c
        )
        before = contents()
        while len(workers := workers_of(begun.pid)) < 2 or contents() == before:
            assert begun.poll() is None, begun.communicate()[1]
            time.sleep(0.01)
        begun.send_signal(deadly)
        _, said = begun.communicate()  # when all that have its stderr have ended
        assert begun.returncode == (130 if deadly == signal.SIGINT else -signal.SIGKILL), said
        assert "Traceback" not in said
        assert not [pid for pid in workers if command_of(pid)]
    done = {path: path.stat().st_mtime_ns for path in Path("out").rglob("result.json")}
    assert pipeline.main([*COMMAND, "--processes", "2"]) == 0
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert stored.exists()
    assert len(json.loads(Path("out/comparison.json").read_text())["cells"]) == 6


def heeds_ctrl_c() -> None:
    """A shell's background jobs ignore Ctrl-C, and so do their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def contents() -> set[Path]:
    """All that cells have written."""
    return set(Path("out").rglob("*"))


def workers_of(pid: int) -> list[int]:
    """The processes that run cells, not what the command starts for a moment, such as ldconfig."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"LokyProcess" in command_of(int(child))]


def command_of(pid: int) -> bytes:
    """A process' command line, or nothing if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
