"""Connections to the service: how many, from where, and how long an unfinished message may take.

All limits are functions of what callers send and of the clock; none looks at a record.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .config import ServiceConfig
from .jobs import refused

HEAD_SECONDS = 10.0  # for the headers of a request, and for a body that nobody reads any more
GRACE = 45  # seconds after which a service that was told to stop has ended, whatever it is at
READER_SECONDS = 20.0  # in which the reader of a reply must take some of it

Peer = tuple[str, int]  # address and port of the other side


class Doors:
    """The open connections of a service: at most ``limit`` in all, ``by_address`` from an address.

    Where a limit is reached, the oldest connection without an admitted request is closed for a new
    one: a valid key is the only way to keep a place. Where all have one, the new one is closed.
    One analyst has at most a quarter of all places for requests at the same time, and analysts
    together leave an eighth to custodians. Used by the event loop's thread alone.
    """

    def __init__(self, limit: int, by_address: int) -> None:
        self._limit, self._by_address = limit, by_address
        self._open: dict[Peer, Connection] = {}  # the oldest first
        self._at_work: Counter[Peer | None] = Counter()
        self._asking: Counter[str] = Counter()  # requests by analyst

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, connection: Connection) -> bool:
        """Whether a new connection may stay."""
        near = [peer for peer in self._open if peer[0] == connection.peer[0]]
        crowded = len(near) >= self._by_address
        if crowded or len(self._open) >= self._limit:
            among = near if crowded else self._open
            idle = next((peer for peer in among if not self._at_work[peer]), None)
            if idle is None:
                return False
            self._open.pop(idle).hang_up()
        self._open[connection.peer] = connection
        return True

    def leave(self, connection: Connection) -> None:
        """The connection is closed."""
        if self._open.get(connection.peer) is connection:
            del self._open[connection.peer]

    def begin(self, peer: Peer | None, analyst: str | None) -> None:
        """A request with a valid key has begun. Raises Refused where an analyst has no place."""
        if analyst is not None:
            mine, all_of_them = self._asking[analyst], self._asking.total()
            if mine >= max(1, self._limit // 4) or all_of_them >= self._limit - self._limit // 8:
                raise refused("busy")
            self._asking[analyst] += 1
        self._at_work[peer] += 1

    def end(self, peer: Peer | None, analyst: str | None) -> None:
        """The request is answered."""
        for counter, key in ((self._at_work, peer), (self._asking, analyst)):
            counter[key] -= 1  # type: ignore[index]
            if counter[key] <= 0:  # type: ignore[index]
                del counter[key]  # type: ignore[arg-type]


def doors_of(config: ServiceConfig) -> Doors:
    """The doors of a service. Half of the process's descriptors at most are connections."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    limit = config.connections
    if descriptors != resource.RLIM_INFINITY:
        limit = max(8, min(limit, descriptors // 2))
    return Doors(limit, config.connections_by_address)


class Connection(socket.socket):
    """An accepted socket, which leaves the doors when it is closed."""

    def __init__(self, accepted: socket.socket, peer: Peer, doors: Doors) -> None:
        super().__init__(fileno=accepted.detach())
        self.peer, self._doors = peer, doors

    def hang_up(self) -> None:
        """Make both sides see the end. The event loop then closes the socket."""
        with suppress(OSError):  # the other side may have gone already
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._doors.leave(self)
        super().close()


class Listener(socket.socket):
    """A listening socket, whose connections pass the doors before a byte of them is read."""

    def __init__(self, listening: socket.socket, doors: Doors) -> None:
        super().__init__(fileno=os.dup(listening.fileno()))
        self._doors = doors

    def accept(self) -> tuple[socket.socket, Any]:
        while True:  # until no connection waits, which is an error that the event loop expects
            accepted, address = super().accept()
            connection = Connection(accepted, address[:2], self._doors)
            if self._doors.enter(connection):
                return connection, address
            connection.close()


class GuardedServer(uvicorn.Server):
    """uvicorn behind the doors. ``stop``: ends the work that requests wait for."""

    def __init__(self, config: uvicorn.Config, doors: Doors, stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._doors, self._stop = doors, stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        end_in_time()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([Listener(bound, self._doors) for bound in sockets or []])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        stopping = asyncio.get_running_loop().run_in_executor(None, self._stop)
        await super().shutdown(sockets)
        await stopping


def end_in_time() -> None:
    """Let the system end this process after GRACE seconds, whatever holds it up.

    That is safe at any moment: what was charged is stored, and nothing is sent before that.
    """
    signal.alarm(GRACE)


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with an end for whoever sends headers, or takes a reply, too slowly."""

    _head: asyncio.TimerHandle | None = None
    _reader: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_more(True)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_more(self._unfinished())

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_more(self._unfinished())

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._expect_reader()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head, self._reader):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _unfinished(self) -> bool:
        """Whether headers have begun, or a body goes on that nobody waits for."""
        if self.cycle is not None and not self.cycle.response_complete:
            return False
        return bool(self.conn.trailing_data[0]) or self.conn.their_state is h11.SEND_BODY

    def _expect_more(self, unfinished: bool) -> None:
        if not unfinished and self._head is not None:
            self._head.cancel()
            self._head = None
        elif unfinished and self._head is None:
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _expect_reader(self, before: int | None = None) -> None:
        """Look from time to time whether the reply gets shorter; end the connection if not."""
        left = self.transport.get_write_buffer_size()
        if before is not None and left >= before:
            self.transport.abort()
        elif left and (before is not None or self._reader is None):
            self._reader = self.loop.call_later(READER_SECONDS, self._expect_reader, left)
        else:
            self._reader = None
