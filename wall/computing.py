"""How much of the machine a side uses."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

LOOK = 0.2  # seconds for which it is seen how many CPUs are idle
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True)
class Computing:
    """How it is computed. Other threads, workers, batches or devices may change a result's last
    digits.

    Args:
        threads: at most so many CPU threads of torch, a count; fewer where other programs use
            the machine.
        workers: threads that compute features, and at most so many short trainings at a time,
            each in a process with its share of the threads, a count.
        batch_size: queries charged, answered and recorded together, a count below 2^20.
        device: device for the private rows' networks, products and neighbour lists, and for the
            networks of public rows that may be asked: cpu, or cuda, a GPU of this machine.
    """

    threads: Count = 2
    workers: Count = 2
    batch_size: Annotated[int, Field(ge=1, lt=1 << 20)] = 256
    device: Literal["cpu", "cuda"] = "cpu"


def free_threads(most: int) -> int:
    """The number of threads to use: one for each CPU that is idle now, from 1 to ``most``."""
    with suppress(OSError, ValueError, ZeroDivisionError):  # another system than Linux
        idle, total = _idle()
        time.sleep(LOOK)
        later, end = _idle()
        share = (later - idle) / (end - total)
        return min(most, max(1, round(share * len(os.sched_getaffinity(0)))))
    return most


def _idle() -> tuple[int, int]:
    """(idle, all) units of the CPUs' time until now."""
    with open("/proc/stat") as file:
        spent = [int(word) for word in file.readline().split()[1:]]
    return spent[3] + spent[4], sum(spent)
