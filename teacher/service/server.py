"""From a custodian's directory to a running service."""

from __future__ import annotations

import logging
import socket
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import uvicorn
from fastapi import FastAPI

from labelwall.teacher.custodian import Custodian
from labelwall.teacher.noise.entropy import Entropy
from labelwall.teacher.records.sources import Records
from labelwall.teacher.service.analysts import Analysts
from labelwall.teacher.service.app import Log, create_app, log_line
from labelwall.teacher.service.auth import Bodies, Guard, Rates
from labelwall.teacher.service.config import ServiceConfig
from labelwall.teacher.service.fair_lock import Turns
from labelwall.teacher.service.keys import Keys
from labelwall.teacher.service.queue import Desk
from labelwall.teacher.service.routes import MIB
from labelwall.teacher.service.state import Service
from labelwall.teacher.shards.config import ScaleConfig
from labelwall.teacher.teacher import Progress, Teacher, quiet
from labelwall.wall.datasets.sources import Task
from labelwall.wall.errors import InvalidInput

GRACE = 60  # seconds in which a stopping service finishes the requests at work


def build_app(
    custodian: Custodian,
    open_records: Callable[[], Records],
    learned: Task,
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
    """The application that answers for one custodian's directory. The private rows are read here, once.

    ``certified``: the plan's epsilon, None where nothing is certified. ``probe``: PUBLIC rows of the custodian's own, on which
    received networks are tested; without them a network runs one row at a time. ``sharded``: makes the teacher, given what is the
    custodian's, where the rows lie in shards instead of in ``open_records``, as ``scale`` says. Where the directory's ledger is
    a register, each analyst gets a service over the same rows. ``progress`` hears how far the work on private rows is, for the
    custodian alone: no reply has anything of it.

    Raises what reading the private rows raises, before anybody can ask; InvalidInput for analysts' own ledgers over shards,
    LedgerMismatch for a file of keys that is damaged.
    """
    keys.listed()  # what has expired is written down, and a damaged file is the custodian's to hear of
    if sharded is not None and custodian.ledger.state.is_register():
        raise InvalidInput("scale.shards", "0 where each analyst has a budget", "more")
    report = partial(_report, custodian.directory / "errors.log")
    guard, turns, state = (
        Guard(keys, Rates(config.requests_per_second)),
        Turns(),
        custodian.ledger.state,
    )
    plan, room = state.plan, 4 * MIB * max(config.max_request, config.max_extractor)
    assert plan is not None

    def service_over(opened: Custodian, open_rows: Callable[[], Records]) -> Service:
        """A teacher, its queue and all else that belongs to one ledger."""
        place = opened.ledger, opened.directory, learned.num_classes, entropy
        make = sharded or partial(Teacher, open_rows)
        how = {"batch_size": batch_size, "workers": workers, "device": device}
        teacher = make(*place, **how, progress=lambda *now: desk.progress(*now))
        queue = {"batch_size": batch_size, "waiting": config.waiting, "room": room}
        desk: Desk = Desk(
            teacher, opened.ledger, probe=probe, report=report, turns=turns, watch=progress, **queue
        )
        return Service(
            desk=desk,
            teacher=teacher,
            ledger=opened.ledger,
            guard=guard,
            bodies=Bodies(room),
            record_bodies=Bodies(room),
            config=config,
            learned=learned,
            directory=opened.directory,
            dataset=opened.dataset,
            plan=plan,
            unsafe=state.unsafe,
            certified=certified,
            adversary=opened.ledger.state.adversary,
            scale=scale or ScaleConfig(),
        )

    service = service_over(custodian, open_records)
    (teacher := service.teacher).open()
    if state.is_register():
        service.analysts = Analysts(
            custodian, teacher, lambda opened: service_over(opened, teacher.records), report
        )
        service.analysts.finish()
    return create_app(service, report, log)


def _report(path: Path) -> None:
    """Write down the failure that is being handled, for the custodian."""
    with path.open("a") as file:
        file.write(traceback.format_exc())


def listen(config: ServiceConfig) -> socket.socket:
    """The bound socket of a service. Raises InvalidInput where the address can not be had."""
    try:
        return socket.create_server(
            (config.host, config.port),
            family=socket.AF_INET6 if ":" in config.host else socket.AF_INET,
        )
    except OSError as error:
        raise InvalidInput(
            "service.host, port",
            "an address that is free on this machine",
            f"{config.host}:{config.port}",
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
