"""One process of a training on several devices, started by student.launch alone."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from .devices import kind
from .fit import fit
from .job import Job, read_job
from .launch import STEPS_DONE
from .ranks import Ranks


def main(arguments: Sequence[str]) -> None:
    """Run one process of a training.

    ``arguments``: run folder, scratch folder, number of processes, threads. The job is on stdin.
    """
    run_dir, scratch = Path(arguments[0]), Path(arguments[1])
    size, threads = (int(argument) for argument in arguments[2:])
    job = read_job(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    ranks = _meet(job, scratch / "meeting", size)

    def progress(done: int, total: int) -> None:
        if ranks.rank == 0:
            (scratch / "steps.part").write_text(str(done))
            (scratch / "steps.part").replace(scratch / STEPS_DONE)

    trained = fit(job, run_dir, progress=progress, ranks=ranks)
    if ranks.rank == 0:
        (scratch / "weights.safetensors").write_bytes(trained.weights)
        (scratch / "history.json").write_text(json.dumps(trained.history))
    dist.barrier()
    dist.destroy_process_group()


def _meet(job: Job, place: Path, size: int) -> Ranks:
    """Join the others.

    They find each other by a file of this training alone: no port is open to anybody else.
    """
    rank, gpu = int(os.environ["LOCAL_RANK"]), kind(job.config) == "gpu"
    if gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if gpu else "gloo",
        store=dist.FileStore(str(place), size),
        rank=rank,
        world_size=size,
    )
    return Ranks(rank, size)


def _end_with_parent() -> None:
    """Nobody waits for the result any more, and the next run may use the same folder."""
    os.read(0, 1)  # not by the buffered stdin, whose lock the interpreter wants when it ends
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
