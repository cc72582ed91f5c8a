"""Cost of a query over many machines, predicted from scale.py's times on one."""

import math
from dataclasses import dataclass

import numpy as np

SEARCH_DIMENSIONS = 256  # of the measured rows
LIST = 2513  # entries of a list for k = 300 at gamma = 0.15


@dataclass(frozen=True)
class Constants:
    """Times of the model's parts, in milliseconds.

    Of one thread: ``pair``, a query and a record; ``entry``, an entry of an ordered list. Of the
    process that answers: ``request``, a worker's part in a batch of any size; ``returned``, an
    entry that a worker returns; ``merged``, an entry that is merged.
    """

    pair: float
    entry: float
    request: float
    returned: float
    merged: float


def fitted(
    times: dict[int, float], echoes: dict[int, float], batch: int, merged: float
) -> Constants:
    """Constants fitted to measured times.

    ``times``: {records: ms a query of one thread}. ``echoes``: {entries a query: ms a batch of an
    idle worker}.
    """
    rows, took = np.array(sorted(times), dtype=float), np.array([times[n] for n in sorted(times)])
    # Relative errors, so that the small sizes, where the list decides, count as much as the large
    # ones.
    terms = np.stack([rows, np.full(len(rows), LIST)], axis=1) / took[:, None]
    pair, entry = np.maximum(np.linalg.lstsq(terms, np.ones(len(rows)), rcond=None)[0], 0.0)
    returned, request = np.polyfit([batch * width for width in echoes], list(echoes.values()), 1)
    return Constants(
        float(pair), float(entry), max(0.0, float(request)), max(0.0, float(returned)), merged
    )


def asked_for(shards: int) -> int:
    """Entries of a list that each of ``shards`` equal shards is asked for.

    Its share and six standard deviations more (teacher/shards/shards.py).
    """
    share = LIST / shards
    return LIST if shards == 1 else min(LIST, math.ceil(share + 6 * math.sqrt(share) + 8))


def cost(
    constants: Constants, rows: int, shards: int, batch: int, *, threads: int = 1, ray: bool = False
) -> dict[str, float]:
    """Milliseconds a query by part.

    Shards in one process, one by one, or each in a Ray worker of ``threads`` threads.
    """
    c, width = constants, asked_for(shards)
    search = (c.pair * rows / shards + c.entry * width) / threads
    parts = {"search": search if ray else shards * search, "merge": c.merged * shards * width}
    if ray:
        parts["workers"] = shards * c.request / batch + c.returned * shards * width
    return parts


def bytes_a_query(shards: int) -> int:
    """Bytes over the network: 8 an entry (row, distance: int32), and the query to each shard."""
    return 8 * shards * asked_for(shards) + SEARCH_DIMENSIONS * shards


def memory(rows: int, machines: int) -> dict[str, float]:
    """GiB of a machine and of the process that answers.

    A machine has features, ids and labels in files that it can drop, and 4 bytes of index and a
    127th of the features a record. The process has 5 bytes a record.
    """
    index = 4 + SEARCH_DIMENSIONS / 127
    return {
        "a machine": rows / machines * (SEARCH_DIMENSIONS + 16 + index) / 2**30,
        "the process that answers": rows * 5 / 2**30,
    }
