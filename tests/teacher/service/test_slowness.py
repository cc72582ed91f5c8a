"""Slow, many and vanishing connections. None takes a place that somebody else needs."""

import itertools
import os
import socket
import ssl
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import product
from unittest.mock import Mock

import httpx
import pytest

from labelwall.teacher.service import callers
from labelwall.teacher.service import server as server_module
from labelwall.teacher.service.server import ConnectionLimits, listen
from labelwall.teacher.service.service_config import ServiceConfig
from labelwall.wall.errors import Refused
from labelwall.wall.messages import Queries
from labelwall.wall.wire import SAFETENSORS
from tests.make import until
from tests.teacher.service import tiny
from tests.teacher.service.test_connection import self_signed
from tests.teacher.service.tiny import SPEC, ask, call, client, clients, rows, served


def connected(url, sent, address="127.0.0.1"):
    host, port = url.rpartition("/")[2].split(":")
    opened = socket.create_connection((host, int(port)), 30, (address, 0))
    opened.sendall(sent)
    return opened


def ended(opened, seconds=10.0):
    """Whether the service ends a connection in time, whatever it says before."""
    opened.settimeout(seconds)
    try:
        while opened.recv(1 << 16):
            pass
    except OSError as error:
        return not isinstance(error, TimeoutError)
    return True


def drip(opened, reply=b""):
    """Send single bytes until the service has replied or ends the connection: what it says."""
    end = time.monotonic() + 10
    opened.settimeout(0.05)
    with suppress(ConnectionError):
        while not reply.endswith(b"}"):
            assert time.monotonic() < end
            opened.sendall(b"a")
            with suppress(TimeoutError):
                reply += opened.recv(1 << 16)
    return reply


@contextmanager
def many(url, number, sent, address="127.0.0.1"):
    with ExitStack() as stack:
        opened = []
        for _ in range(number):
            with suppress(ConnectionError):
                opened.append(stack.enter_context(connected(url, sent, address)))
        yield opened


def upload(token, length):
    """Headers of a request that announces a body and sends none of it."""
    return (
        f"POST /v1/labels?extractor={SPEC.sha256()} HTTP/1.1\r\nhost: a\r\n"
        f"authorization: Bearer {token}\r\ncontent-type: {SAFETENSORS}\r\n"
        f"content-length: {length}\r\n\r\n"
    ).encode()


def test_unfinished_headers_end(shared, monkeypatch):
    url = shared.url
    whole = b"GET /v1/health HTTP/1.1\r\nhost: a\r\n"
    with many(url, 1, whole + b"\r\n") as used:
        assert b"200" in used[0].recv(1 << 16)
        monkeypatch.setattr(server_module, "HEAD_SECONDS", 0.5)
        used[0].sendall(b"GET /v1")
        assert ended(used[0])
    with many(url, 1, b"") as silent, many(url, 1, whole) as slow:
        assert ended(silent[0])
        assert ended(slow[0])
    with many(url, 1, whole) as dripping:
        drip(dripping[0])


def test_a_handshake_that_does_not_go_on_takes_no_place(tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "CONNECTIONS", 8)
    certificate, key = self_signed(tmp_path), tmp_path / "key.pem"
    config = ServiceConfig(port=0, certfile=str(certificate), keyfile=str(key))
    made = tiny.make(tmp_path / "service", config=config)
    with served(made, config) as url, many(url, 20, b"\x16\x03\x01"):
        context = ssl.create_default_context(cafile=str(certificate))
        assert httpx.get(f"{url}/v1/health", verify=context, timeout=30).status_code == 200
        assert len(made.app.state.connections.open) <= 8


def test_one_address_has_a_limit_of_its_own(monkeypatch):
    monkeypatch.setattr(server_module, "CONNECTIONS", 10)
    places = ConnectionLimits(by_address=3)
    near = [Mock(peer=("near", port)) for port in range(4)]
    assert all(places.enter(each) for each in near)
    assert [each.end.call_count for each in near] == [1, 0, 0, 0]  # the oldest
    assert places.enter(Mock(peer=("far", 1)))
    for each in near[1:]:
        places.begin(each.peer, "ann" if each is near[1] else None)
    assert not places.enter(Mock(peer=("near", 9)))
    places.end(("near", 2), None)
    assert places.enter(Mock(peer=("near", 9)))
    assert len(places.open) == 4


def test_where_every_place_is_at_work_a_new_connection_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "CONNECTIONS", 8)
    made = tiny.make(tmp_path)
    with served(made) as url:
        places = made.app.state.connections
        with many(url, 8, b"") as opened:
            until(lambda: len(places.open) == 8)
            for peer in places.open:
                places.begin(peer, None)
            with many(url, 1, b"") as (late,):
                assert ended(late)
            assert not any(ended(each, 0.01) for each in opened)


def test_connections_are_accepted_at_a_steady_rate(tmp_path, monkeypatch):
    """Whoever hangs up at once costs as little as whoever waits."""
    monkeypatch.setattr(server_module, "ACCEPT_PAUSE", 0.1)
    entered, enter = [], ConnectionLimits.enter
    monkeypatch.setattr(
        ConnectionLimits,
        "enter",
        lambda self, connection: (entered.append(connection.peer), enter(self, connection))[1],
    )
    with served(tiny.make(tmp_path)) as url:
        begun = time.monotonic()
        for _ in range(40):
            connected(url, b"").close()
        assert call(url, None, path="health").status_code == 200  # it waited behind all of them
        assert len(entered) == 41
        assert time.monotonic() - begun >= 40 * 0.1 - 0.05
        with listen(ServiceConfig(port=0)) as bound:  # which connections inherit
            assert bound.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)  # no wait of 40 ms


@pytest.mark.parametrize("sent", [b"", b"GET /v1/health HTTP/1.1\r\nx: "], ids=["none", "some"])
def test_an_analyst_and_silence_keep_no_place_from_the_custodian(tmp_path, monkeypatch, sent):
    """A quarter of all places for one analyst's requests, never all of them for analysts."""
    monkeypatch.setattr(server_module, "CONNECTIONS", 12)
    made = tiny.make(tmp_path)
    with clients(made, "ann"):
        with many(made.url, 60, sent) as opened:
            assert made.call("carol").status_code == made.call("ann").status_code == 200
            assert len(made.app.state.connections.open) <= 12
            assert sum(ended(each, 0.01) for each in opened) >= 40
        with many(made.url, 12, upload(made.tokens["ann"], 1000)):
            until(lambda: made.app.state.connections._asking["ann"] == 3)
            assert made.call("carol").status_code == made.call("bob").status_code == 200
            assert made.call("ann").json()["code"] == "busy"
        until(lambda: made.call("ann").status_code == 200)  # its places are free again


def test_announced_and_dripping_bodies_take_no_room(made, monkeypatch):
    """Eight requests announce all the room and send nothing. They are dropped, others answered."""
    monkeypatch.setattr(callers, "STALL_SECONDS", 1)
    with clients(made, "bob"):
        with many(made.url, 9, upload(made.tokens["ann"], 64 << 20)) as silent:
            assert ask(made.url, made.tokens["bob"], rows(3, 1)).status_code == 200
            assert b"at 64 KiB per second" in drip(silent.pop())
            assert all(b" 422 " in each.recv(1 << 16) for each in silent)
        assert made.service.bodies.in_use == 0


def test_a_full_room_is_shared_by_callers(made):
    made.service.bodies._room = 100_000
    with clients(made, "ann"):
        head = upload(made.tokens["ann"], 90_000)
        with many(made.url, 1, head + bytes(80_000)) as first:
            until(lambda: made.service.bodies.in_use == 80_000)
            assert ask(made.url, made.tokens["bob"], rows(1200, 1), wait=0).status_code == 202
            first[0].sendall(bytes(9_000))
            until(lambda: made.service.bodies.in_use == 89_000)
            made.service.bodies._received["bob"] += 60_000  # as if bob still sent
            first[0].sendall(bytes(500))
            assert b"busy" in drip(first[0])


def test_a_reader_who_takes_nothing_of_a_reply_is_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "READER_SECONDS", 0.3)
    (tmp_path / "big").touch()
    os.truncate(tmp_path / "big", 1 << 26)
    made = tiny.make(tmp_path / "service")
    monkeypatch.setattr(made.service, "ledger_copy", lambda: (tmp_path / "big").open("rb"))
    asks = f"GET /v1/ledger HTTP/1.1\r\nauthorization: Bearer {made.tokens['ann']}\r\nhost: a\r\n"
    with served(made) as url, many(url, 1, f"{asks}\r\n".encode()):
        until(lambda: len(made.app.state.connections.open))
        until(lambda: not len(made.app.state.connections.open), 30)


def test_a_connection_is_not_read_before_its_turn(made, monkeypatch):
    """Who is gone or never spoke keeps a place until its turn alone, and nobody behind it."""
    monkeypatch.setattr(server_module, "PAUSE", 0.1)
    with served(made) as url, many(url, 5, b"") as silent:
        connected(url, b"GET /v1/health HTTP/1.1\r\n").close()
        until(lambda: len(made.app.state.connections.open) == 6)
        assert not [line for line in made.lines if line["event"] == "request"]
        assert call(url, None, path="health").status_code == 200
        until(lambda: len(made.app.state.connections.open) == len(silent))


def test_addresses_take_turns(made, monkeypatch):
    """One that opens many connections keeps no other waiting behind them."""
    monkeypatch.setattr(server_module, "PAUSE", 0.05)
    turns, turn = [], ConnectionLimits.turn

    async def recorded(self, address):
        turns.append(("comes", address))
        await turn(self, address)
        turns.append(("has its turn", address))

    monkeypatch.setattr(ConnectionLimits, "turn", recorded)
    with served(made) as url, many(url, 60, b"", "127.0.0.2"):
        until(lambda: len(turns) >= 60)
        assert call(url, None, path="health").status_code == 200
        ours = [turns.index((what, "127.0.0.1")) for what in ("comes", "has its turn")]
        assert turns[slice(*ours)].count(("has its turn", "127.0.0.2")) <= 2


def test_a_stranger_has_one_reply_of_a_connection(made):
    """What is sent behind its request is not read; a valid key keeps the connection."""
    ask = "GET /v1/{} HTTP/1.1\r\nhost: a\r\n{}\r\n".format
    with served(made) as url:
        for key, replies in (("", 1), (f"authorization: Bearer {made.tokens['ann']}\r\n", 3)):
            sent = ask("budget", key) + 2 * ask("health", "")
            with many(url, 1, sent.encode()) as (opened,):
                reply = b""
                while reply.count(b"HTTP/1.1 ") < replies:
                    reply += opened.recv(1 << 16)
                assert (b"connection: close" in reply) == (not key)
                assert key or ended(opened, 2.0)
    seen = [line["route"] for line in made.lines if line["event"] == "request"]
    assert seen == ["/v1/budget", "/v1/budget", "/v1/health", "/v1/health"]


def test_a_client_that_goes_away_is_no_failure(made, tmp_path, caplog):
    with clients(made, "ann"):
        connected(made.url, upload(made.tokens["ann"], 1000) + b"x" * 10).close()
        until(lambda: any(line.get("status") == 499 for line in made.lines))
        assert made.service.bodies.in_use == 0
        assert 'status="503"' not in made.call("carol", "metrics").text
    assert not (tmp_path / "errors.log").exists()
    assert not caplog.records


def test_what_is_not_read_gets_400_and_is_in_no_log(made, tmp_path, caplog, capfd):
    """A reply of its own does not follow, whether the application would read a body or not."""
    keys = "", f"authorization: Bearer {made.tokens['ann']}\r\n"
    paths = ("health", "nowhere", f"labels?extractor={SPEC.sha256()}")
    chunks = "transfer-encoding: chunked\r\n"
    rest = [
        *(f"{chunks}\r\n{body}" for body in ("-1\r\nSECRET\r\n", "1\r\nx\r\n" * 9, "0\r\n\r\n")),
        f"content-length: 5\r\n{chunks}\r\n0\r\n\r\n",  # two lengths of one body
        "SECRET\r\n\r\n",
        "SECRET:\r\n" * 100 + "\r\n",
        f"x: {'SECRET' * 3000}\r\n",
    ]
    with served(made) as url:
        for method, path, key, sent in product(("GET", "HEAD", "POST"), paths, keys, rest):
            head = f"{method} /v1/{path} HTTP/1.1\r\nhost: a\r\n{key}"
            with many(url, 1, f"{head}{sent}".encode()) as opened:
                reply = b"".join(iter(lambda: opened[0].recv(1 << 16), b""))
                assert reply.startswith(b"HTTP/1.1 400 "), reply
                assert b"SECRET" not in reply
                assert method == "HEAD" or b"content-length, not in chunks" in reply
        assert call(url, made.tokens["ann"]).status_code == 200
    assert not (tmp_path / "errors.log").exists()
    shown = capfd.readouterr()
    assert "SECRET" not in shown.out + shown.err + caplog.text + str(made.lines)
    assert "Traceback" not in shown.err + caplog.text


def test_after_a_reply_an_unfinished_body_is_not_read(shared):
    """The connection ends at once, and a client that still sends sees the reply."""
    with many(shared.url, 1, upload("wrong", 1 << 20)) as opened:
        assert b" 401 " in opened[0].recv(1 << 16)
        assert ended(opened[0], 2.0)
    large = replace(SPEC, axes=bytes(1 << 25), center=(0.0,) * 8)
    with pytest.raises(Refused, match="API key"), client(shared.url, "wrong", spec=large):
        pass


def test_a_failure_of_a_request_is_logged_without_its_text(made, tmp_path, monkeypatch):
    """The text of an unexpected error may quote what was sent."""
    error = ValueError("SECRET")
    monkeypatch.setattr(made.service.queue.usage, "calls", Mock(side_effect=error))
    with served(made):
        assert made.call("ann", "receipts").json()["code"] == "teacher_failed"
    log = (tmp_path / "errors.log").read_text()
    assert [word in log for word in ("ValueError", "in receipts", "SECRET")] == [True, True, False]


def test_no_redirect_repeats_what_was_sent(shared):
    reply = call(shared.url, None, path="health/", host="evil.example")
    assert reply.status_code == 404
    assert "evil" not in str(reply.headers) + reply.text


STRANGERS = {
    "chunks": b"POST /v1/openapi.json HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    + b"1\r\nx\r\n" * 100_000,
    "pipelined": b"GET /v1/openapi.json HTTP/1.1\r\nhost: a\r\n\r\n" * 10_000,
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_stranger_costs_one_read_and_one_reply(tmp_path, monkeypatch, kind):
    """However much it sends. How long an analyst waits beside: `benchmarks/service/attacked.py`."""
    reads, received = [], server_module.TimedProtocol.data_received
    monkeypatch.setattr(
        server_module.TimedProtocol,
        "data_received",
        lambda self, data: (reads.append(self), received(self, data))[1],
    )
    made, rounds = tiny.make(tmp_path), itertools.count(100)
    with clients(made, "ann") as ann:
        before = len(os.listdir("/proc/self/fd"))

        def attack(number):
            with many(made.url, 1, b"", f"127.0.0.{2 + number % 8}") as opened:
                opened[0].settimeout(0.5)
                with suppress(OSError):
                    opened[0].sendall(STRANGERS[kind])
                ended(opened[0])

        with ThreadPoolExecutor(8) as pool:
            done = [pool.submit(attack, number) for number in range(40)]
            while not all(each.done() for each in done):
                ann.answer(Queries(rows(2, next(rounds))))
                assert len(os.listdir("/proc/self/fd")) - before < 60
        for each in done:
            each.result()
    # Connections are counted, not addresses: a later stranger may get the port of an earlier one.
    strangers = Counter(connection for connection in reads if connection.client[0] != "127.0.0.1")
    assert len(strangers) == 40
    assert max(strangers.values()) <= 2  # asyncio reads once more before it pauses
    assert sum(line.get("route") == "/v1/openapi.json" for line in made.lines) <= 40


def test_descriptors_are_as_many_as_places(tmp_path, monkeypatch):
    """A connection that nobody reads, and that reads nothing, is closed for a new one."""
    monkeypatch.setattr(server_module, "CONNECTIONS", 40)
    made = tiny.make(tmp_path)
    with served(made) as url:
        before = len(os.listdir("/proc/self/fd"))
        with many(url, 300, b"GET /v1/openapi.json HTTP/1.1\r\nhost: a\r\n\r\n" * 300) as opened:
            assert call(url, made.tokens["ann"]).status_code == 200
            until(lambda: len(os.listdir("/proc/self/fd")) - before - len(opened) <= 42)


def test_wrong_keys_of_one_address_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(callers, "FAILURES", 10)
    monkeypatch.setattr(callers, "FAILURE_RATE", 1e-6)
    made = tiny.make(tmp_path)
    with served(made) as url:
        statuses = [call(url, "x").status_code for _ in range(20)]
        assert statuses == [401] * 10 + [429] * 10
        assert call(url, made.tokens["ann"]).status_code == 200  # a right key is not a failure
