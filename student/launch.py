"""A training in child processes.

They import the student and the wall, and are given the job and nothing else.

Lightning's launcher would start the command line again in each process, teacher and ledger
included; its others fork, or import the main module, which need not be ours. So the processes are
ours, one a device, and Lightning finds them started.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ..wall.errors import LabelwallError
from ..wall.progress import TaskProgress, no_progress
from .job import Job, write_job

WORKER = "labelwall.student.worker"
STEPS_DONE = "steps"  # a scratch file in which the first process writes how many are done
LOOK_AGAIN = 0.05  # seconds between two looks at whether all processes are alive
SECRETS = "LABELWALL_"  # environment variables that begin so are the caller's: keys, places of data


def train_apart(
    job: Job, run_dir: Path, progress: TaskProgress = no_progress
) -> tuple[bytes, list[dict[str, float]]]:
    """(weights, history) of a training in job.config.devices processes of this machine.

    They find each other by a file and talk on the loopback interface. Each gets the job on its
    standard input, which stays open: where it ends, the process does, so none outlives this one.
    Writes checkpoints and events under ``run_dir``; scratch files among the checkpoints are gone
    afterwards. Raises LabelwallError where a process fails: the others are ended, too, and their
    logs stay among the checkpoints.
    """
    scratch = run_dir.resolve() / "checkpoints" / "ranks"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    message = write_job(job)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(job.config.devices):
            processes.append(_start(rank, job.config.devices, run_dir, scratch))
        for process in processes:
            _hand(process, message)
        _wait(processes, scratch, lambda done: progress(done, job.config.steps))
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
    found = (
        (scratch / "weights.safetensors").read_bytes(),
        json.loads((scratch / "history.json").read_text()),
    )
    shutil.rmtree(scratch)
    return found


def _start(rank: int, size: int, run_dir: Path, scratch: Path) -> subprocess.Popen[bytes]:
    threads = max(1, torch.get_num_threads() // size)
    options = [str(run_dir.resolve()), str(scratch), str(size), str(threads)]
    line = [sys.executable, "-P", "-m", WORKER, *options]
    with (scratch / f"rank_{rank}.log").open("wb") as log:
        return subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=_environment(rank),
            start_new_session=True,  # an interrupt is for this process, which then ends them
            bufsize=0,
        )


def _environment(rank: int) -> dict[str, str]:
    """Environment variables of the training's processes.

    They are this process's, without the caller's own, and with those that Lightning and gloo read.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SECRETS)}
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    interfaces = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), loopback)
    return {**kept, **interfaces, "LOCAL_RANK": str(rank), "NODE_RANK": "0"}


def _hand(process: subprocess.Popen[bytes], message: bytes) -> None:
    assert process.stdin is not None
    rest = memoryview(message)
    try:
        while rest:
            rest = rest[process.stdin.write(rest) :]
    except BrokenPipeError:
        pass  # it has ended, which is seen next


def _wait(
    processes: list[subprocess.Popen[bytes]], scratch: Path, steps_done: Callable[[int], None]
) -> None:
    """Until all have succeeded. Raises LabelwallError as soon as one has not."""
    while True:
        if (scratch / STEPS_DONE).exists():
            steps_done(int((scratch / STEPS_DONE).read_text()))
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code:
                said = (scratch / f"rank_{rank}.log").read_text(errors="replace").split("\n")
                last = next((line.strip() for line in reversed(said) if line.strip()), "")
                raise LabelwallError(
                    f"process {rank} of the student's training ended with code {code}. {last} "
                    "The same command continues from the last checkpoint."
                )
        if all(code == 0 for code in codes):
            return
        time.sleep(LOOK_AGAIN)
