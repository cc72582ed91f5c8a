"""A connection to a PostgreSQL server that a test cuts at a chosen message.

It is cut before the server receives the message, or before the answer comes back.
"""

import contextlib
import socket
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Wire:
    """``home``: directory of its socket. The ``number``-th message that contains ``at`` is cut.

    ``answered``: the server receives the message, and its answer is lost. Otherwise the server does
    not receive it.
    """

    home: Path
    server: Path
    at: bytes = b""
    number: int = 1
    answered: bool = False

    def arm(self, at: bytes, number: int, answered: bool) -> None:
        self.at, self.number, self.answered = at, number, answered

    def carry(self, client: socket.socket) -> None:
        """Relay one connection until an end closes it, or it is cut."""
        heard = threading.Event()  # whether the client still hears the server
        heard.set()
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(str(self.server / ".s.PGSQL.5432"))
            back = threading.Thread(target=_pump, args=(server, client, heard))
            back.start()
            while message := _receive(client):
                if self._is_cut(message):
                    heard.clear()
                    if self.answered:
                        server.sendall(message)
                    break
                server.sendall(message)
            _close(server, socket.SHUT_WR)  # the server does what it was told, then hangs up
            back.join()
            _close(client)

    def _is_cut(self, message: bytes) -> bool:
        if not self.at or self.at not in message:
            return False
        self.number -= 1
        if self.number:
            return False
        self.at = b""
        return True


def _pump(source: socket.socket, sink: socket.socket, heard: threading.Event) -> None:
    while message := _receive(source):
        if heard.is_set():
            with contextlib.suppress(OSError):
                sink.sendall(message)


def _receive(end: socket.socket) -> bytes:
    try:
        return end.recv(1 << 16)
    except OSError:
        return b""


def _close(end: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(how)


@contextmanager
def wire_to(server: Path) -> Iterator[Wire]:
    """A wire to the server whose socket is in the directory ``server``."""
    with tempfile.TemporaryDirectory(prefix="lw", dir="/tmp") as home:
        wire = Wire(Path(home), server)
        carry = {"handle": lambda handler: wire.carry(handler.request)}
        handler = type("Handler", (socketserver.BaseRequestHandler,), carry)
        with socketserver.ThreadingUnixStreamServer(f"{home}/.s.PGSQL.5432", handler) as door:
            threading.Thread(target=door.serve_forever).start()
            yield wire
            door.shutdown()
