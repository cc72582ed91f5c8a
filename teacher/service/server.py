"""From a custodian's directory to a running service."""

from __future__ import annotations

import logging
import socket
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import uvicorn
from fastapi import FastAPI

from teacher.custodian import Custodian
from teacher.privacy.noise import Entropy
from teacher.records import Records
from teacher.service.app import Log, create_app, log_line
from teacher.service.config import ServiceConfig
from teacher.service.desk import Desk
from teacher.service.guard import Bodies, Guard, Rates
from teacher.service.keys import Keys
from teacher.service.routes import MIB, Service
from teacher.teacher import Teacher
from wall.errors import InvalidInput
from wall.sources import Task

GRACE = 60  # seconds in which a stopping service finishes the requests at work


def build_app(
    custodian: Custodian,
    open_records: Callable[[], Records],
    learned: Task,
    *,
    config: ServiceConfig,
    keys: Keys,
    entropy: Entropy,
    certified: float | None,
    probe: np.ndarray | None,
    batch_size: int = 256,
    workers: int = 1,
    log: Log = log_line,
) -> FastAPI:
    """The application that answers for one custodian's directory. The private rows are read here, once.

    ``certified``: the plan's epsilon, None where nothing is certified. ``probe``: PUBLIC rows of the custodian's own, on which
    received networks are tested; without them a network runs one row at a time.

    Raises what reading the private rows raises: for the custodian, before anybody can ask.
    """
    ledger, desk = custodian.ledger, None

    def progress(what: str, done: int, total: int) -> None:
        if desk is not None:
            desk.progress(what, done, total)

    def report() -> None:
        (custodian.directory / "errors.log").open("a").write(traceback.format_exc())

    place = custodian.directory, learned.num_classes, entropy
    teacher = Teacher(open_records, ledger, *place, batch_size=batch_size, workers=workers, progress=progress)
    teacher.open()
    room = 4 * MIB * max(config.max_request, config.max_extractor)
    desk = Desk(teacher, ledger, probe=probe, batch_size=batch_size, waiting=config.waiting, room=room, report=report)
    state = ledger.state
    assert state.plan is not None
    service = Service(
        desk=desk,
        teacher=teacher,
        ledger=ledger,
        guard=Guard(keys, Rates(config.requests_per_second)),
        bodies=Bodies(room),
        config=config,
        learned=learned,
        directory=custodian.directory,
        dataset=state.dataset,
        plan=state.plan,
        unsafe=state.unsafe,
        certified=certified,
    )
    return create_app(service, report, log)


def listen(config: ServiceConfig) -> socket.socket:
    """The bound socket of a service. Raises InvalidInput where the address can not be had."""
    try:
        return socket.create_server((config.host, config.port), family=socket.AF_INET6 if ":" in config.host else socket.AF_INET)
    except OSError as error:
        raise InvalidInput(
            "service.host, port", "an address that is free on this machine", f"{config.host}:{config.port}"
        ) from error


def address(config: ServiceConfig, bound: socket.socket) -> str:
    """The URL that clients use."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{'https' if config.certfile else 'http'}://{host}:{bound.getsockname()[1]}"


def server(app: FastAPI, config: ServiceConfig) -> uvicorn.Server:
    """uvicorn, quiet: its messages could quote a request. It stops on SIGTERM and SIGINT when the requests at work are done."""
    for certificate in (config.certfile, config.keyfile):
        if certificate is not None and not Path(certificate).is_file():
            raise InvalidInput("service.certfile, keyfile", "existing PEM files", certificate)
    for name in ("uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).disabled = True
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            ssl_certfile=config.certfile,
            ssl_keyfile=config.keyfile,
            timeout_graceful_shutdown=GRACE,
        )
    )
