"""Building and running the service of a custodian's directory."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import uvicorn
from fastapi import FastAPI

from labelwall.teacher.custodian import Custodian
from labelwall.teacher.noise.entropy import Entropy
from labelwall.teacher.private_files import log_failure
from labelwall.teacher.records.sources import Records
from labelwall.teacher.service.app import Log, create_app, log_line
from labelwall.teacher.service.auth import Allowances, Authenticator, BodyReader, RateLimiter
from labelwall.teacher.service.config import ServiceConfig
from labelwall.teacher.service.connections import GuardedServer, TimedProtocol, doors_of
from labelwall.teacher.service.fair_lock import FairLock
from labelwall.teacher.service.keys import Keys
from labelwall.teacher.service.queue import RequestQueue
from labelwall.teacher.service.routes import MIB
from labelwall.teacher.service.state import Analysts, Service
from labelwall.teacher.shards.config import ScaleConfig
from labelwall.teacher.teacher import Teacher
from labelwall.wall.datasets.sources import Task
from labelwall.wall.errors import InvalidInput
from labelwall.wall.progress import Progress, quiet

REQUESTS_GRACE = 20  # seconds for a stopping service to finish its current requests


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
    progress: Progress = quiet,
) -> FastAPI:
    """The application that serves one custodian's directory. It reads the private rows here, once.

    ``certified``: the plan's epsilon, None where nothing is certified.
    ``probe``: PUBLIC rows of the custodian on which received networks are tested. Without them a
    network runs one row at a time.
    ``sharded``: makes the teacher where the rows are in shards, as set in ``scale``, instead of in
    ``open_records``.
    ``progress``: receives progress over private rows, for the custodian only. It is in no reply.

    Where the directory's ledger is a register, each analyst gets a service over the same rows.

    Raises what reading the private rows raises, before any request; InvalidInput for analysts' own
    ledgers over shards; LedgerMismatch for a damaged key file.
    """
    keys.listed()  # stores which have expired, and reports a damaged file at the start
    if sharded is not None and custodian.ledger.state.is_register():
        raise InvalidInput("scale.shards", "0 where each analyst has a budget", "more")
    report = partial(log_failure, custodian.directory)
    auth = Authenticator(keys, RateLimiter(config.requests_per_second))
    lock, allowances = FairLock(), Allowances(config)
    room = 4 * MIB * max(config.max_request, config.max_extractor)
    state = custodian.ledger.state
    plan = state.plan
    assert plan is not None

    def service_over(opened: Custodian, open_rows: Callable[[], Records]) -> Service:
        """A service over one ledger, with a teacher and a queue of its own."""
        teacher = (sharded or partial(Teacher, open_rows))(
            opened.ledger,
            opened.directory,
            task.num_classes,
            entropy,
            batch_size=batch_size,
            workers=workers,
            device=device,
            progress=lambda *now: queue.progress(*now),
        )
        queue: RequestQueue = RequestQueue(
            teacher,
            opened.ledger,
            probe=probe,
            batch_size=batch_size,
            max_jobs=config.waiting,
            max_bytes=room,
            report=report,
            lock=lock,
            watch=progress,
            grown=allowances.growth.spend,
        )
        return Service(
            queue=queue,
            teacher=teacher,
            ledger=opened.ledger,
            auth=auth,
            allowances=allowances,
            bodies=BodyReader(room),
            record_bodies=BodyReader(room),
            config=config,
            task=task,
            directory=opened.directory,
            dataset=opened.dataset,
            plan=plan,
            unsafe=state.unsafe,
            certified=certified,
            adversary=opened.ledger.state.adversary,
            scale=scale or ScaleConfig(),
        )

    service = service_over(custodian, open_records)
    teacher = service.teacher
    teacher.open()
    if state.is_register():
        service.analysts = Analysts(
            custodian, teacher, lambda opened: service_over(opened, teacher.records), report
        )
        service.analysts.finish_removal()
    return create_app(service, doors_of(config), report, log)


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
