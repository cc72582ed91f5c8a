"""uvicorn around the application: addresses, TLS, limited connections, an end for who is slow."""

import asyncio
import logging
import re
import resource
import signal
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, cast
from weakref import WeakValueDictionary

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...wall.errors import InvalidInput
from .replies import refused
from .service_config import ServiceConfig

CONNECTIONS = 512  # open at the same time; at most half of the process's descriptors
BACKLOG = 2048  # connections that wait to be accepted
ACCEPT_PAUSE = 0.0025  # seconds between two that are: each costs 0.5 ms, whoever hangs up at once
PAUSE = 0.005  # seconds between the turns of accepted connections to be read
HEAD_SECONDS = 10.0  # for the headers of a request
HEAD_LINES, HEAD_BYTES = 100, 16 << 10  # of the headers of a request
READER_SECONDS = 20.0  # in which the reader of a reply must take some of it
NOT_READ = (
    f"Invalid HTTP request: at most {HEAD_LINES} headers of {HEAD_BYTES >> 10} KiB are read, and "
    "bodies with content-length, not in chunks."
)
REQUESTS_GRACE = 20  # seconds for a stopping service to finish its current requests
GRACE = 45  # seconds after which a service that has to stop has ended, whatever it is at

Peer = tuple[str, int]  # address and port of the other side


def listen(config: ServiceConfig) -> socket.socket:
    """The bound socket of a service. Raises InvalidInput if the address is not available."""
    try:
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        bound = socket.create_server((config.host, config.port), family=family)
    except OSError as error:
        rule = "an address that is free on this machine"
        raise InvalidInput("service.host, port", rule, f"{config.host}:{config.port}") from error
    # Connections inherit both. The second part of a small reply does not wait for 40 ms; the kernel
    # ends a connection whose other side takes nothing of a reply.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * READER_SECONDS))
    return bound


def address(config: ServiceConfig, bound: socket.socket) -> str:
    """The URL that clients use."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{'https' if config.certfile else 'http'}://{host}:{bound.getsockname()[1]}"


def server(app: FastAPI, config: ServiceConfig) -> uvicorn.Server:
    """uvicorn without log messages, which could quote a request. Raises InvalidInput for TLS files
    that can not be used, and for a key that everybody can read.
    """
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
        if config.keyfile and (mode := Path(config.keyfile).stat().st_mode & 0o777) & 0o037:
            rule = "a file of its owner, that at most its group reads (mode 0600 or 0640)"
            raise InvalidInput("service.keyfile", rule, f"mode {mode:04o}")
        settings.load()
    except (ssl.SSLError, OSError) as error:
        rule = "files of a certificate chain and its private key (PEM)"
        raise InvalidInput("service.certfile, keyfile", rule, config.certfile) from error
    return GuardedServer(settings, app)


class ConnectionLimits:
    """The open connections of a service: at most CONNECTIONS in all, ``by_address`` from one.

    If a limit is reached, a new connection takes the place of the oldest one without an admitted
    request, and is closed if there is none: a valid key is the only way to keep a place. One
    analyst has at most a quarter of all places for requests at the same time, and analysts together
    leave an eighth to custodians. Used by the event loop's thread alone.

    New connections are read one after the other, PAUSE apart; addresses take turns (``turn``).
    """

    def __init__(self, by_address: int) -> None:
        self._limit, self._by_address = CONNECTIONS, by_address
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if descriptors != resource.RLIM_INFINITY:
            self._limit = min(CONNECTIONS, max(8, descriptors // 2))
        self.open: dict[Peer, Connection] = {}  # the oldest first
        self._turn = asyncio.Lock()
        self._turns = WeakValueDictionary[str, asyncio.Lock]()  # by address
        self._at_work: Counter[Peer | None] = Counter()
        self._asking: Counter[str | None] = Counter()  # requests by analyst

    async def turn(self, address: str) -> None:
        """Await it: one connection of an address after the other, among one of each address."""
        async with self._turns.setdefault(address, asyncio.Lock()), self._turn:
            await asyncio.sleep(PAUSE)

    def enter(self, connection: "Connection") -> bool:
        """Whether a new connection may stay."""
        of_address = [peer for peer in self.open if peer[0] == connection.peer[0]]
        crowded = len(of_address) >= self._by_address
        if crowded or len(self.open) >= self._limit:
            among = of_address if crowded else self.open
            idle = next((peer for peer in among if not self._at_work[peer]), None)
            if idle is None:
                return False
            self.open.pop(idle).end()
        self.open[connection.peer] = connection
        return True

    def leave(self, connection: "Connection") -> None:
        if self.open.get(connection.peer) is connection:
            del self.open[connection.peer]

    def begin(self, peer: Peer | None, analyst: str | None) -> None:
        """A request with a valid key has begun. Raises Refused where an analyst has no place."""
        if analyst is not None:
            mine, all_of_them = self._asking[analyst], self._asking.total()
            if mine >= max(1, self._limit // 4) or all_of_them >= self._limit - self._limit // 8:
                raise refused("busy")
            self._asking[analyst] += 1
        self._at_work[peer] += 1
        if peer in self.open:
            self.open[peer].admitted = True

    def end(self, peer: Peer | None, analyst: str | None) -> None:
        self._at_work -= Counter([peer])
        self._asking -= Counter([analyst])


class Connection(socket.socket):
    """An accepted socket, which gives its place back when it is closed.

    ``admitted``: whether a request with a valid key came by it; without one it has one reply.
    """

    admitted = False
    transport: asyncio.Transport | None = None  # none before the end of a TLS handshake

    def __init__(self, accepted: socket.socket, peer: Peer, limits: ConnectionLimits) -> None:
        super().__init__(fileno=accepted.detach())
        self.peer, self._limits = peer, limits

    def end(self) -> None:
        """Let the event loop close it in its next turn, also where nothing is read of it."""
        with suppress(OSError):
            self.transport.abort() if self.transport else self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._limits.leave(self)
        super().close()


class GuardedServer(uvicorn.Server):
    """uvicorn with limited connections, which ends the work that requests wait for."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app, self._accepting = app, list[asyncio.Task[None]]()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Let the service finish; the system ends this process after GRACE seconds in any case."""
        signal.alarm(GRACE)  # safe at any moment: what was charged is stored before it is sent
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])  # asyncio would accept as fast as strangers connect and hang up
        self._accepting = [asyncio.create_task(self._accept(bound)) for bound in sockets or []]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for accepting in self._accepting:
            accepting.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        stopping = asyncio.create_task(asyncio.to_thread(self._app.state.service.stop))
        await super().shutdown(sockets)
        await stopping

    async def _accept(self, bound: socket.socket) -> None:
        """Accept connections one by one, ACCEPT_PAUSE apart, and open those that get a place."""
        limits, opening = self._app.state.connections, set[asyncio.Task[None]]()
        bound.listen(BACKLOG)
        bound.setblocking(False)
        while True:
            with suppress(OSError):  # gone before it was accepted, or no descriptor is free
                accepted, address = await asyncio.get_running_loop().sock_accept(bound)
                connection = Connection(accepted, address[:2], limits)
                if limits.enter(connection):
                    task = asyncio.create_task(self._open(connection))
                    opening.add(task)  # the event loop alone would forget it
                    task.add_done_callback(opening.discard)
                else:
                    connection.close()
            await asyncio.sleep(ACCEPT_PAUSE)

    async def _open(self, connection: "Connection") -> None:
        """Let the protocol have a connection, by TLS after a handshake."""
        protocol = partial(TimedProtocol, self.config, self.server_state, self.lifespan.state)
        with suppress(OSError):  # of a handshake, too
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol, connection, ssl=self.config.ssl
            )


class BoundedRequests(h11.Connection):
    """h11 that refuses heads of many lines and bodies in chunks: few bytes, and much work."""

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE:
            head = re.split(rb"\n\r?\n", self.trailing_data[0][:HEAD_BYTES], maxsplit=1)[0]
            if head.count(b"\n") > HEAD_LINES or len(head) == HEAD_BYTES:
                raise h11.RemoteProtocolError(NOT_READ)
        event = super().next_event()
        if isinstance(event, h11.Request) and b"transfer-encoding" in dict(event.headers):
            raise h11.RemoteProtocolError(NOT_READ)
        return event


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with an end for whoever sends headers too slowly, or no HTTP at all."""

    _beginning: asyncio.Task[None] | None = None
    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.conn, app = BoundedRequests(h11.SERVER), cast(FastAPI, self.config.app)
        connection = app.state.connections.open.get(self.client)
        if connection is None:  # ended for another one before it came here
            transport.abort()
            return
        connection.transport = transport
        self.app_state = {**self.app_state, "connection": connection}
        self.flow.pause_reading()
        turn = app.state.connections.turn(connection.peer[0])
        self._beginning = self.loop.create_task(self._begin(turn))

    async def _begin(self, turn: Awaitable[None]) -> None:
        await turn
        self.flow.resume_reading()
        self._expect_more(new=True)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_more()

    def on_response_complete(self) -> None:
        if self.conn.their_state is h11.SEND_BODY:  # the rest is neither read nor awaited
            self.transport.close()
        super().on_response_complete()
        self._expect_more()

    def send_400_response(self, msg: str) -> None:
        """The one reply to what is not HTTP. The error quotes what was sent: it is not logged."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        try:
            super().send_400_response(NOT_READ)
        except h11.LocalProtocolError:  # a reply has begun, or may have no body
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._beginning is not None:
            self._beginning.cancel()
        if self._head is not None:
            self._head.cancel()
        super().connection_lost(exc)

    def _expect_more(self, new: bool = False) -> None:
        """Await the rest of headers that have begun."""
        idle = self.cycle is None or self.cycle.response_complete
        unfinished = new or (idle and bool(self.conn.trailing_data[0]))
        if not unfinished and self._head is not None:
            self._head.cancel()
            self._head = None
        elif unfinished and self._head is None:
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.abort)
