"""Building and running the service of a custodian's directory."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import uvicorn
from fastapi import FastAPI

from ...wall.datasets.sources import Task
from ...wall.errors import InvalidInput
from ...wall.progress import Progress, no_progress
from ..custodian import Custodian
from ..noise.entropy import Entropy
from ..private_files import log_failure
from ..records.sources import Records
from ..shards.config import ScaleConfig
from ..teacher import Teacher
from .app import Log, create_app, log_line
from .auth import Allowances, Authenticator, BodyReader, RateLimiter
from .config import ServiceConfig
from .connections import GuardedServer, TimedProtocol, doors_of
from .fair_lock import FairLock
from .keys import Keys
from .queue import RequestQueue
from .room import Room
from .route_parts import MIB
from .state import Analysts, Service

REQUESTS_GRACE = 20  # seconds for a stopping service to finish its current requests


def nothing() -> None:
    """Load nothing: all is loaded already."""


@dataclass(frozen=True)
class Building:
    """What all services of one process share. The fields are those of ``build_app``."""

    task: Task
    sharded: Callable[..., Teacher] | None
    config: ServiceConfig
    entropy: Entropy
    certified: float | None
    probe: np.ndarray | None
    batch_size: int
    workers: int
    device: str
    scale: ScaleConfig
    progress: Progress
    load: Callable[[], None]
    auth: Authenticator
    allowances: Allowances
    report: Callable[[], None]
    lock: FairLock = field(default_factory=FairLock)

    def service_over(self, opened: Custodian, open_rows: Callable[[], Records]) -> Service:
        """A service over one ledger, with a teacher and a queue of its own."""
        room = 4 * MIB * max(self.config.max_request, self.config.max_extractor)
        teacher = (self.sharded or partial(Teacher, open_rows))(
            opened.ledger,
            opened.directory,
            self.task.num_classes,
            self.entropy,
            batch_size=self.batch_size,
            workers=self.workers,
            device=self.device,
            progress=lambda *now: queue.progress(*now),
        )
        queue: RequestQueue = self._queue(teacher, opened, Room(self.config.waiting, room))
        state = opened.ledger.state
        assert state.plan is not None
        return Service(
            queue=queue,
            teacher=teacher,
            ledger=opened.ledger,
            auth=self.auth,
            allowances=self.allowances,
            bodies=BodyReader(room),
            record_bodies=BodyReader(room),
            config=self.config,
            task=self.task,
            directory=opened.directory,
            dataset=opened.dataset,
            plan=state.plan,
            unsafe=state.unsafe,
            certified=self.certified,
            adversary=state.adversary,
            scale=self.scale,
        )

    def _queue(self, teacher: Teacher, opened: Custodian, room: Room) -> RequestQueue:
        return RequestQueue(
            teacher,
            opened.ledger,
            probe=self.probe,
            load=self.load,
            batch_size=self.batch_size,
            room=room,
            report=self.report,
            lock=self.lock,
            watch=self.progress,
            grown=self.allowances.growth.spend,
        )


def build_app(
    custodian: Custodian,
    open_records: Callable[[], Records],
    task: Task,
    *,
    sharded: Callable[..., Teacher] | None = None,
    config: ServiceConfig,
    keys: Keys,
    entropy: Entropy,
    certified: float | None,
    probe: np.ndarray | None,
    batch_size: int = 256,
    workers: int = 1,
    device: str = "cpu",
    scale: ScaleConfig | None = None,
    log: Log = log_line,
    progress: Progress = no_progress,
    load: Callable[[], None] = nothing,
) -> FastAPI:
    """The application that serves one custodian's directory. It reads the private rows here, once.

    ``certified``: the plan's epsilon, None where nothing is certified.
    ``probe``: PUBLIC rows of the custodian on which received networks are tested. Without them a
    network runs one row at a time.
    ``sharded``: makes the teacher where the rows are in shards, as set in ``scale``, instead of in
    ``open_records``.
    ``progress``: receives progress over private rows, for the custodian only. It is in no reply.
    ``load``: loads what the first step needs, while requests are accepted already.

    Where the directory's ledger is a register, each analyst gets a service over the same rows.

    Raises what reading the private rows raises, before any request; InvalidInput for analysts' own
    ledgers over shards; LedgerMismatch for a damaged key file.
    """
    keys.listed()  # stores which have expired, and reports a damaged file at the start
    per_analyst = custodian.ledger.state.is_register()
    if sharded is not None and per_analyst:
        raise InvalidInput("scale.shards", "0 where each analyst has a budget", "more")
    report = partial(log_failure, custodian.directory)
    auth = Authenticator(keys, RateLimiter(config.requests_per_second))
    shared = task, sharded, config, entropy, certified, probe, batch_size, workers, device
    building = Building(
        *shared, scale or ScaleConfig(), progress, load, auth, Allowances(config), report
    )
    service = building.service_over(custodian, open_records)
    service.teacher.open()
    if per_analyst:
        service.analysts = analysts_of(custodian, service.teacher, building)
        service.analysts.finish_removal()
    return create_app(service, doors_of(config), report, log)


def analysts_of(custodian: Custodian, teacher: Teacher, building: Building) -> Analysts:
    """The analysts' own services over the rows of the custodian's teacher."""

    def build(opened: Custodian) -> Service:
        return building.service_over(opened, teacher.records)

    return Analysts(custodian, teacher, build, building.report)


def listen(config: ServiceConfig) -> socket.socket:
    """The bound socket of a service. Raises InvalidInput if the address is not available."""
    try:
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        bound = socket.create_server((config.host, config.port), family=family)
        # Connections inherit it: the second part of a small reply does not wait for 40 ms.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return bound
    except OSError as error:
        rule = "an address that is free on this machine"
        raise InvalidInput("service.host, port", rule, f"{config.host}:{config.port}") from error


def address(config: ServiceConfig, bound: socket.socket) -> str:
    """The URL that clients use."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{'https' if config.certfile else 'http'}://{host}:{bound.getsockname()[1]}"


def server(app: FastAPI, config: ServiceConfig) -> uvicorn.Server:
    """uvicorn without log messages, which could quote a request.

    On SIGTERM and SIGINT it finishes the current requests and stops, at the latest after
    connections.GRACE seconds.
    """
    _check_tls(config)
    for name in ("uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).disabled = True
    settings = uvicorn.Config(
        app,
        http=TimedProtocol,
        ws="none",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        ssl_certfile=config.certfile,
        ssl_keyfile=config.keyfile,
        timeout_graceful_shutdown=REQUESTS_GRACE,
    )
    try:
        settings.load()
    except (ssl.SSLError, OSError) as error:
        rule = "a certificate chain and its private key (PEM)"
        raise InvalidInput("service.certfile, keyfile", rule, config.certfile) from error
    return GuardedServer(settings, app.state.doors, app.state.service.stop)


def _check_tls(config: ServiceConfig) -> None:
    """Raise InvalidInput for a missing file, and for a key that everybody can read."""
    for certificate in (config.certfile, config.keyfile):
        if certificate is not None and not Path(certificate).is_file():
            raise InvalidInput("service.certfile, keyfile", "existing PEM files", certificate)
    if config.keyfile is not None and (mode := Path(config.keyfile).stat().st_mode & 0o777) & 0o037:
        rule = "a file of its owner, that at most its group reads (mode 0600 or 0640)"
        raise InvalidInput("service.keyfile", rule, f"mode {mode:04o}")
