"""How much of the machine a side uses."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True)
class Computing:
    """How it is computed, which changes no result.

    Args:
        threads: CPU threads of torch, a count.
        workers: threads that compute features, and at most so many short trainings at a time,
            each in a process with its share of the threads, a count.
        batch_size: queries charged, answered and recorded together, a count.
        device: device for the private rows' networks, products and neighbour lists, and for the
            networks of public rows that may be asked: cpu, or cuda, a GPU of this machine.
    """

    threads: Count = 2
    workers: Count = 2
    batch_size: Count = 256
    device: Literal["cpu", "cuda"] = "cpu"
