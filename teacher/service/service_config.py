"""Settings of the service. Imports neither torch nor a web framework."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ...wall.errors import InvalidInput
from ...wall.progress import Progress, no_progress
from ..shards.scale_config import ScaleConfig

if TYPE_CHECKING:
    from ...wall.datasets.data_config import Task
    from ..noise.entropy import Entropy
    from ..teacher import Teacher

MIB = 1 << 20

ANY = "any"  # in place of a backbone's name
RANGES = {
    "port": (0, 65535),
    "max_body": (1, 1 << 20),
    "requests_per_second": (1e-3, 1e9),
    "connections_by_address": (1, 1 << 20),
}


@dataclass(frozen=True)
class ServiceConfig:
    """Addresses and limits of `labelwall serve`. Other limits are constants of callers.py.

    Args:
        host: address to listen on; any but this machine's loopback needs certfile and keyfile.
        port: TCP port, from 0 to 65535; 0 takes a free one and prints it.
        certfile: TLS certificate chain (PEM file); none when null.
        keyfile: the certificate's private key (PEM file); none when null.
        max_body: largest request body (MiB); an extractor is one.
        requests_per_second: average rate allowed to one API key, a count per second.
        connections_by_address: maximum open connections from one address, a count; 512 where a
            proxy stands before the service.
        budget: "shared": one budget against all callers together, who may pool their answers;
            "per_analyst": a whole budget and a separate ledger for each analyst (name of a key),
            under the assumption, named in every certificate, that analysts do not pool answers.
            Fixed by the first start on a custodian_dir.
        backbones: networks that are accepted, by name, timm's as "timm/NAME"; "any": all that are
            known; null: all but timm's.
    """

    host: str = "127.0.0.1"
    port: int = 8470
    certfile: str | None = None
    keyfile: str | None = None
    max_body: int = 128
    requests_per_second: float = 100.0
    connections_by_address: int = 128
    budget: Literal["shared", "per_analyst"] = "shared"
    backbones: list[str] | None = None

    def __post_init__(self) -> None:
        for name, (least, most) in RANGES.items():
            value = vars(self)[name]
            if not least <= value <= most:
                raise InvalidInput(f"service.{name}", f"from {least:g} to {most:.10g}", value)
        if (self.certfile is None) != (self.keyfile is None):
            lacking = "certfile" if self.certfile is None else "keyfile"
            why = "a certificate and its key are needed together"
            raise InvalidInput.missing(f"service.{lacking}", why)
        try:  # a name of this machine that needs no name server
            host = "127.0.0.1" if self.host == "localhost" else self.host.strip("[]")
            loopback = ipaddress.ip_address(host).is_loopback
        except ValueError:
            loopback = False
        if self.certfile is None and not loopback:
            raise InvalidInput.missing("service.certfile", "others can reach this address")


@dataclass(frozen=True)
class Settings:
    """Settings that all services of one process share.

    Args:
        config: addresses and limits.
        task: the public form of the rows and their labels.
        entropy: the source of sampling bits and noise.
        certified: the plan's epsilon, None where nothing is certified.
        sharded: makes the teacher where the rows are in shards, as set in ``scale``.
        batch_size: queries of one step, gathered from all callers.
        workers, device: as of the Teacher.
        progress: receives progress over private rows, for the custodian only. It is in no reply.
        features: what the custodian's configuration asks with, for analysts without one.
        load: loads what the first step needs, while requests are accepted already.
    """

    config: ServiceConfig
    task: Task
    entropy: Entropy
    certified: float | None
    sharded: Callable[..., Teacher] | None = None
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    batch_size: int = 256
    workers: int = 1
    device: str = "cpu"
    progress: Progress = no_progress
    features: Mapping[str, object] = field(default_factory=dict)
    load: Callable[[], None] = lambda: None

    @property
    def body_room(self) -> int:
        """Bytes of bodies, and of queued requests, at the same time."""
        return 4 * MIB * self.config.max_body
