"""Settings of the shards of the private rows.

Imports neither torch nor Ray: the command line's help reads these fields.
"""

import re
from dataclasses import dataclass
from typing import Literal

from ...wall.errors import InvalidInput

MAX_SHARDS = 10_000
ADDRESS = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")


@dataclass(frozen=True)
class ScaleConfig:
    """Shards of the private rows. Answers do not depend on the backend or the number of shards.

    Args:
        backend: what searches the shards: local (this process, one after the other) or ray (a
            worker process for each shard, on this machine or a cluster; extra "scale").
        shards: parts of the private rows on disk, by a keyed hash of their ids, a count; 0 (local
            only): all rows in this process's memory.
        ray_address: of a running Ray cluster that asks for a token, as HOST:PORT; null: workers on
            this machine.
        threads: CPU threads of a Ray worker, a count.
        gpus: GPUs of a Ray worker if the device is not the CPU (a share below 1, or a count).
    """

    backend: Literal["local", "ray"] = "local"
    shards: int = 0
    ray_address: str | None = None
    threads: int = 1
    gpus: float = 1.0

    def __post_init__(self) -> None:
        least, address = int(self.backend == "ray"), self.ray_address
        shards = f"from {least} to {MAX_SHARDS} for {self.backend}"
        if address is not None and self.backend == "local":
            raise InvalidInput.needless("scale.ray_address", "only the backend ray uses it")
        for name, fits, rule in (
            ("backend", self.backend in ("local", "ray"), "local or ray"),
            ("shards", least <= self.shards <= MAX_SHARDS, shards),
            ("ray_address", address is None or ADDRESS.fullmatch(address), "a head's HOST:PORT"),
            ("threads", 1 <= self.threads <= 1024, "from 1 to 1024"),
            ("gpus", 0 < self.gpus <= 1 or self.gpus in range(1, 17), "a share, or 1 to 16"),
        ):
            if not fits:
                raise InvalidInput(f"scale.{name}", rule, vars(self)[name])
