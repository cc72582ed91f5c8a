"""What a client makes of a service that is none, of one that is away, and of a wrong key."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from labelwall.wall import client as client_module
from labelwall.wall.client import RemoteTeacher
from labelwall.wall.errors import InvalidInput, Refused
from labelwall.wall.matrices import Cells
from labelwall.wall.messages import ExtractorSpec, Queries

DEEP = b"[" * 20_000 + b"]" * 20_000
JOB = {"job": "0" * 64, "kind": "labels", "status": "done", "done": 1, "total": 1}
REPLIES = {
    "a page": b"<html>welcome</html>",
    "nothing": b"",
    "no object": b"[1, 2]",
    "an empty object": b"{}",
    "deep": DEEP,
    "deep inside": json.dumps(JOB).encode()[:-1] + b', "result": ' + DEEP + b"}",
    "no text": b"\xff\xfe\x00",
    "an endless number": b"9" * 5000,
    "another job": json.dumps(JOB | {"job": "../../x\n", "result": {}}).encode(),
    "no result": json.dumps(JOB).encode(),
    "another result": json.dumps(JOB | {"result": [1]}).encode(),
}
CALLS: dict[str, Callable[[RemoteTeacher], object]] = {
    "budget": lambda teacher: teacher.budget(lambda value: value["plan"]["epsilon"]),
    "extractor": lambda teacher: teacher.use_extractor(ExtractorSpec("raw", (3,), 2)),
    "answer": lambda teacher: teacher.answer(Queries(np.zeros((2, 3), np.float32))),
    "count": lambda teacher: teacher.count(Cells(np.zeros((2, 3), np.int8))),
}


class Anything(BaseHTTPRequestHandler):
    status, body = 200, b""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(self.status)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_PUT = do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Anything) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def teacher_of(url: str, **how: object) -> RemoteTeacher:
    teacher = RemoteTeacher(url, "key", **how)  # type: ignore[arg-type]
    teacher._spec = ExtractorSpec("raw", (3,), 2)
    return teacher


@pytest.mark.parametrize("status", [200, 202])
@pytest.mark.parametrize("body", REPLIES.values(), ids=REPLIES)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_reply_of_a_service_is_one_line_with_its_url(
    url: str, call: str, body: bytes, status: int, monkeypatch
) -> None:
    if (call, body) == ("extractor", REPLIES["another result"]):
        body = REPLIES["no result"]  # nothing is read of the result
    if status == 202 and b"result" in body:
        body = b"{}"  # a job may always be at work
    monkeypatch.setattr(Anything, "status", status)
    monkeypatch.setattr(Anything, "body", body)
    if status == 202 and body == REPLIES["no result"]:
        return
    with pytest.raises(Refused) as refusal:
        CALLS[call](teacher_of(url))
    assert refusal.value.code == "no_service"
    assert str(refusal.value).startswith(f"{url}: something else than the teacher's service")
    assert "port" in str(refusal.value)


@pytest.mark.parametrize("body", [*REPLIES.values(), DEEP])
def test_a_refusal_of_another_form_is_tried_again_and_given_up(
    url: str, body: bytes, monkeypatch
) -> None:
    monkeypatch.setattr(Anything, "status", 500)
    monkeypatch.setattr(Anything, "body", body)
    with pytest.raises(Refused, match=r"something else .* \(status 500\)") as refusal:
        teacher_of(url, patience=0).budget()
    assert str(refusal.value).startswith(url)


def test_a_wrong_key_says_where_it_is_from(url: str, monkeypatch) -> None:
    monkeypatch.setattr(Anything, "status", 401)
    monkeypatch.setattr(Anything, "body", b'{"code": "unauthorized", "message": "a valid key."}')
    with pytest.raises(Refused, match=f"{url}: a valid key. .*`labelwall keys add`.*LABELWALL_KEY"):
        teacher_of(url).budget()
    for key in ("", "lw_\n", "lw_é"):
        with pytest.raises(InvalidInput, match="LABELWALL_KEY"):
            RemoteTeacher(url, key)


def test_an_outage_is_said_once_while_it_lasts(monkeypatch) -> None:
    heard = list[str]()
    monkeypatch.setattr(client_module, "MAX_PAUSE", 0.1)
    teacher = teacher_of("http://127.0.0.1:9", patience=1.0, say=heard.append)
    with pytest.raises(
        Refused, match=r"http://127\.0\.0\.1:9: .*refused.*Check the address and port"
    ):
        teacher.budget()
    assert len(heard) == 1
    assert heard[0].endswith("Trying again for 1 seconds.")
