"""Addresses and limits of the service. Imports neither torch nor a web framework."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Literal

from ...wall.errors import InvalidInput

OWN_BACKBONES = (
    "hog",
    "raw",
    "box",
    "mlp",
    "linear",
    "small_cnn",
    "mnist_cvpr20",
    "svhn_cvpr20",
    "cifar_conv3",
    "efficientnet_lite0",
    "efficientnet_lite0_stages",
)
COUNTS = (
    "max_request",
    "max_extractor",
    "max_rows",
    "waiting",
    "connections",
    "connections_by_address",
    "extractors_per_day",
    "extractor_mib_per_day",
    "ledger_mib_per_day",
)


@dataclass(frozen=True)
class ServiceConfig:
    """Addresses and limits of `labelwall serve`.

    Args:
        host: address to listen on; any but this machine's loopback needs certfile and keyfile.
        port: TCP port, from 0 to 65535; 0 takes a free one and prints it.
        certfile: TLS certificate chain (PEM file); none when null.
        keyfile: the certificate's private key (PEM file); none when null.
        max_request: largest request body (MiB), except extractors.
        max_extractor: largest extractor (MiB).
        max_rows: maximum rows of one request, a count.
        waiting: maximum requests that wait for the teacher, a count; further ones are refused
            and may be sent again.
        requests_per_second: average rate allowed to one API key, a count per second.
        connections: maximum open connections, a count; at most half of the process's descriptors.
        connections_by_address: of these, from one address; as many as connections where a proxy
            stands before the service.
        extractors_per_day: maximum new extractors of one caller in a day, a count.
        extractor_mib_per_day: their size in all (MiB).
        ledger_mib_per_day: maximum growth of the ledger by one caller in a day (MiB).
        budget: "shared": one budget against all callers together, who may pool their answers;
            "per_analyst": a whole budget and a separate ledger for each analyst (name of a key),
            under the assumption, named in every certificate, that analysts do not pool answers.
            Fixed by the first start on a custodian_dir.
        backbones: accepted extractors, by name; each "timm/NAME" has to be listed.
    """

    host: str = "127.0.0.1"
    port: int = 8470
    certfile: str | None = None
    keyfile: str | None = None
    max_request: int = 64
    max_extractor: int = 128
    max_rows: int = 1 << 16
    waiting: int = 256
    requests_per_second: float = 100.0
    connections: int = 512
    connections_by_address: int = 128
    extractors_per_day: int = 100
    extractor_mib_per_day: int = 2048
    ledger_mib_per_day: int = 64
    budget: Literal["shared", "per_analyst"] = "shared"
    backbones: list[str] = field(default_factory=lambda: list(OWN_BACKBONES))

    def __post_init__(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise InvalidInput("service.port", "from 0 to 65535", self.port)
        for name in COUNTS:
            count = vars(self)[name]
            if not 1 <= count <= 1 << 20:
                raise InvalidInput(f"service.{name}", "from 1 to 1048576", count)
        if not 0 < self.requests_per_second < 1e9:
            raise InvalidInput("service.requests_per_second", "positive", self.requests_per_second)
        if (self.certfile is None) != (self.keyfile is None):
            files = self.certfile, self.keyfile
            raise InvalidInput("service.certfile, keyfile", "given together", files)
        if self.certfile is None and not is_loopback(self.host):
            rule = "given for an address that others can reach"
            raise InvalidInput("service.certfile", rule, None)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by a name that needs no name server."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
