"""A connection to a PostgreSQL server that a test cuts at a chosen message."""

import contextlib
import socket
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Wire(socketserver.ThreadingUnixStreamServer):
    """``home``: directory of its socket; ``server``: that of the server's.

    The ``number``-th message that contains ``at`` is cut: before the server receives it or, if
    ``answered``, before the answer comes back.
    """

    def __init__(self, home: str, server: Path) -> None:
        super().__init__(f"{home}/.s.PGSQL.5432", Carrier)
        self.home, self.server = home, server
        self.arm(b"", 1, False)

    def arm(self, at: bytes, number: int, answered: bool) -> None:
        self.at, self.number, self.answered = at, number, answered

    def cuts(self, message: bytes) -> bool:
        if not self.at or self.at not in message:
            return False
        self.number -= 1
        if self.number:
            return False
        self.at = b""
        return True


class Carrier(socketserver.BaseRequestHandler):
    """Relays one connection until an end closes it, or it is cut."""

    server: Wire

    def handle(self) -> None:
        heard = threading.Event()  # whether the client still hears the server
        heard.set()
        with self.request as client, socket.socket(socket.AF_UNIX) as server:
            server.connect(str(self.server.server / ".s.PGSQL.5432"))
            back = threading.Thread(target=_pump, args=(server, client, heard))
            back.start()
            while message := _receive(client):
                if self.server.cuts(message):
                    heard.clear()
                    if self.server.answered:
                        server.sendall(message)
                    break
                server.sendall(message)
            _close(server, socket.SHUT_WR)  # the server does what it was told, then hangs up
            back.join()
            _close(client)


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
    with tempfile.TemporaryDirectory(prefix="lw", dir="/tmp") as home, Wire(home, server) as wire:
        threading.Thread(target=wire.serve_forever).start()
        yield wire
        wire.shutdown()
