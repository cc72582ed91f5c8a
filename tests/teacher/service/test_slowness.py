"""Slow, many and vanishing connections. None takes a place that somebody else needs."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from labelwall.teacher.service import auth, connections
from labelwall.teacher.service.config import ServiceConfig
from labelwall.teacher.service.server import listen
from labelwall.wall.errors import Refused
from labelwall.wall.wire import SAFETENSORS, encode
from tests.teacher.service import tiny
from tests.teacher.service.test_connection import self_signed
from tests.teacher.service.tiny import SPEC, call, client, rows, served

FEW = ServiceConfig(port=0, requests_per_second=1e6, connections=12, connections_by_address=12)


def connected(url: str, sent: bytes = b"") -> socket.socket:
    host, port = url.rpartition("/")[2].split(":")
    opened = socket.create_connection((host, int(port)), timeout=30)
    opened.sendall(sent)
    return opened


def ended(opened: socket.socket, seconds: float) -> bool:
    """Whether the service ends a connection in time, whatever it says before."""
    opened.settimeout(seconds)
    with contextlib.suppress(ConnectionError):
        try:
            while opened.recv(1 << 16):
                pass
        except TimeoutError:
            return False
    return True


def received(opened: socket.socket) -> bytes:
    """A reply of the service and its body, which come one after the other."""
    reply = b""
    while not reply.endswith(b"}"):
        part = opened.recv(1 << 16)
        assert part, reply
        reply += part
    return reply


@contextlib.contextmanager
def many(url: str, number: int, sent: bytes) -> Iterator[list[socket.socket]]:
    opened = []
    try:
        for _ in range(number):
            with contextlib.suppress(ConnectionError):
                opened.append(connected(url, sent))
        yield opened
    finally:
        for each in opened:
            each.close()


def upload(token: str, length: int) -> bytes:
    """Headers of a request that announces a body and sends none of it."""
    return (
        f"POST /v1/labels?extractor={SPEC.sha256()} HTTP/1.1\r\nhost: a\r\n"
        f"authorization: Bearer {token}\r\ncontent-type: {SAFETENSORS}\r\n"
        f"content-length: {length}\r\n\r\n"
    ).encode()


def test_accepted_connections_send_small_parts_at_once() -> None:
    """Without TCP_NODELAY every reply but the first waits 40 ms for an acknowledgement."""
    with (
        listen(ServiceConfig(port=0)) as bound,
        socket.create_connection(bound.getsockname()),
        bound.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_unfinished_headers_end(
    shared: tuple[tiny.Made, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a new connection, on a used one, and however steadily single bytes arrive."""
    _, url = shared
    whole = b"GET /v1/health HTTP/1.1\r\nhost: a\r\n"
    with many(url, 1, whole + b"\r\n") as used:
        assert b"200" in used[0].recv(1 << 16)
        monkeypatch.setattr(connections, "HEAD_SECONDS", 0.5)
        used[0].sendall(b"GET /v1")
        assert ended(used[0], 10)
    with many(url, 1, b"") as silent, many(url, 1, whole) as slow:
        assert ended(silent[0], 10)
        assert ended(slow[0], 10)
    with many(url, 1, whole) as dripping:
        started = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() < started + 10:
                dripping[0].sendall(b"a")
                time.sleep(0.05)
        assert time.monotonic() < started + 10


def test_a_handshake_that_does_not_go_on_takes_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ServiceConfig(
        port=0,
        certfile=str(self_signed(tmp_path)),
        keyfile=str(tmp_path / "key.pem"),
        connections=8,
    )
    made = tiny.make(tmp_path / "service", config=config)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    with served(made, config) as url, many(url, 20, b"\x16\x03\x01"):
        context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        assert httpx.get(f"{url}/v1/health", verify=context, timeout=30).status_code == 200
        assert len(made.app.state.doors) <= 8


@pytest.mark.parametrize("sent", [b"", b"GET /v1/health HTTP/1.1\r\nx: "], ids=["none", "some"])
def test_more_connections_than_places_leave_room_for_keys(tmp_path: Path, sent: bytes) -> None:
    made = tiny.make(tmp_path, config=FEW)
    with served(made) as url, many(url, 60, sent) as opened:
        assert call(url, made.tokens["carol"]).status_code == 200
        assert call(url, made.tokens["ann"]).status_code == 200
        assert len(made.app.state.doors) <= 12
        assert sum(ended(each, 0.01) for each in opened) >= 40


def test_one_address_has_a_limit_of_its_own() -> None:
    class Silent:
        def __init__(self, *peer: object) -> None:
            self.peer, self.gone = peer, False

        def hang_up(self) -> None:
            self.gone = True

    doors = connections.Doors(limit=10, by_address=3)
    near = [Silent("near", port) for port in range(4)]
    assert all(doors.enter(each) for each in near)
    assert [each.gone for each in near] == [True, False, False, False]  # the oldest
    assert doors.enter(Silent("far", 1))
    for each in near[1:]:
        doors.begin(each.peer, "ann" if each is near[1] else None)
    assert not doors.enter(Silent("near", 9))
    doors.end(("near", 2), None)
    assert doors.enter(Silent("near", 9))
    assert len(doors) == 4


def test_where_every_place_is_at_work_a_new_connection_is_closed() -> None:
    doors = connections.Doors(limit=1, by_address=1)
    with listen(ServiceConfig(port=0)) as bound, connections.Listener(bound, doors) as listening:
        listening.settimeout(10)
        with socket.create_connection(bound.getsockname()), listening.accept()[0] as first:
            doors.begin(first.getpeername(), None)
            with socket.create_connection(bound.getsockname()) as second:
                listening.settimeout(0.5)
                with pytest.raises(TimeoutError):  # nothing is left to accept
                    listening.accept()
                assert ended(second, 10)
        assert not len(doors)


def test_an_analyst_keeps_no_place_from_the_custodian(tmp_path: Path) -> None:
    """A quarter of all places for one analyst's requests, never all of them for analysts."""
    made = tiny.make(tmp_path, config=FEW)
    waiting = upload(made.tokens["ann"], 1000)
    with served(made) as url, client(url, made.tokens["ann"]):
        with many(url, 12, waiting):
            while made.app.state.doors._asking["ann"] < 3:
                time.sleep(0.01)
            assert call(url, made.tokens["carol"]).status_code == 200
            assert call(url, made.tokens["bob"]).status_code == 200
            assert call(url, made.tokens["ann"]).json()["code"] == "busy"
        while call(url, made.tokens["ann"]).status_code != 200:  # its places are free again
            time.sleep(0.05)


def test_announced_bodies_take_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight requests announce all the room and send nothing. They are dropped, others answered."""
    monkeypatch.setattr(auth, "STALL_TIMEOUT", 1)
    made = tiny.make(tmp_path)
    with served(made) as url, client(url, made.tokens["bob"], patience=0) as bob:
        with many(url, 8, upload(made.tokens["ann"], 64 << 20)) as silent:
            from labelwall.wall.messages import Queries

            assert len(bob.answer(Queries(rows(3, 1))).labels) == 3
            assert all(b" 422 " in each.recv(1 << 16) for each in silent)
        assert made.service.bodies.in_use == 0


def test_a_full_room_is_shared_by_callers(tmp_path: Path) -> None:
    """Who holds more than an equal part of a full room is refused; others are not."""
    made = tiny.make(tmp_path)
    made.service.bodies._room = 100_000
    with served(made) as url, client(url, made.tokens["ann"]):
        head = upload(made.tokens["ann"], 90_000)
        with many(url, 1, head + bytes(80_000)) as first:
            while made.service.bodies.in_use < 80_000:
                time.sleep(0.01)
            body = encode({"inputs": rows(1200, 1)})
            reply = httpx.post(
                f"{url}/v1/labels?extractor={SPEC.sha256()}",
                content=body,
                headers={
                    "authorization": f"Bearer {made.tokens['bob']}",
                    "content-type": SAFETENSORS,
                },
                trust_env=False,
                timeout=60,
            )
            assert reply.status_code == 202
            first[0].sendall(bytes(9_000))
            made.service.bodies._held["bob"] += 60_000  # as if bob still sent
            first[0].sendall(bytes(500))
            assert b"busy" in received(first[0])


def test_a_body_that_drips_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "STALL_TIMEOUT", 0.5)
    made = tiny.make(tmp_path)
    announced = upload(made.tokens["ann"], 1 << 20)
    with served(made) as url, many(url, 1, announced) as dripping:
        started = time.monotonic()
        with contextlib.suppress(OSError):
            while made.service.bodies.in_use or time.monotonic() < started + 0.3:
                assert time.monotonic() < started + 10
                dripping[0].sendall(b"a")
                time.sleep(0.05)
        assert b"at 64 KiB per second" in received(dripping[0])


def test_a_reader_who_takes_nothing_of_a_reply_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "READER_SECONDS", 0.3)
    monkeypatch.setattr("labelwall.teacher.service.routes.export_ledger", lambda _: bytes(1 << 25))
    made = tiny.make(tmp_path)
    asks = f"GET /v1/ledger HTTP/1.1\r\nauthorization: Bearer {made.tokens['ann']}\r\nhost: a\r\n"
    with served(made) as url, many(url, 1, f"{asks}\r\n".encode()):
        time.sleep(0.2)
        started = time.monotonic()
        while len(made.app.state.doors):
            time.sleep(0.05)
            assert time.monotonic() < started + 10


def test_a_client_that_goes_away_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = tiny.make(tmp_path)
    with served(made) as url, client(url, made.tokens["ann"]):
        connected(url, upload(made.tokens["ann"], 1000) + b"x" * 10).close()
        started = time.monotonic()
        while not any(line.get("status") == 499 for line in made.lines):
            time.sleep(0.01)
            assert time.monotonic() < started + 10
        assert made.service.bodies.in_use == 0
        assert 'status="503"' not in call(url, made.tokens["carol"], path="metrics").text
    assert not (tmp_path / "errors.log").exists()
    assert not caplog.records


def test_nobody_hears_of_an_outcome_that_comes_too_late(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A job is refused after its request has ended: asyncio has nothing to report."""
    import gc

    caplog.set_level(logging.ERROR, "asyncio")
    made = tiny.make(tmp_path)
    with served(made) as url, client(url, made.tokens["ann"]):
        with made.service.queue._lock:
            body = encode({"inputs": rows(3, 1)})
            path = f"labels?extractor={SPEC.sha256()}&wait=0.2"
            headers = {"content-type": SAFETENSORS}
            headers["authorization"] = f"Bearer {made.tokens['ann']}"
            reply = httpx.post(
                f"{url}/v1/{path}", content=body, headers=headers, trust_env=False, timeout=60
            )
            assert reply.status_code == 202
            made.service.queue._pending.pop().finish(Refused("busy", "of a test"))
        made.service.queue._jobs.clear()  # a job keeps what waits for it
        call(url, None, path="health")
        gc.collect()
        call(url, None, path="health")
    assert "never retrieved" not in caplog.text


def test_two_lengths_of_one_body_are_refused(shared: tuple[tiny.Made, str]) -> None:
    _, url = shared
    sent = (
        b"POST /v1/labels HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n"
        b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    )
    with many(url, 1, sent) as opened:
        reply = opened[0].recv(1 << 16)
        assert b" 422 " in reply
        assert b"connection: close" in reply.lower()
        assert ended(opened[0], 10)


def test_wrong_keys_of_one_address_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "FAILURES", 10)
    monkeypatch.setattr(auth, "FAILURE_RATE", 1e-6)
    made = tiny.make(tmp_path)
    with served(made) as url:
        found = [call(url, "x").status_code for _ in range(20)]
        assert found[:10] == [401] * 10
        assert 429 in found
        assert call(url, made.tokens["ann"]).status_code == 200  # a right key is not a failure
