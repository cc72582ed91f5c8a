"""The connection besides answers: failures, logs, metrics, TLS, slow bodies, shutdown."""

import ipaddress
import json
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.service import replies
from labelwall.teacher.service.service_config import ServiceConfig
from labelwall.wall.errors import InvalidInput, Refused, TeacherFailed
from labelwall.wall.messages import Queries
from tests.make import until
from tests.teacher.service import tiny
from tests.teacher.service.tiny import client, clients, rows, served


def test_what_leaves_is_documented(shared):
    """Replies, errors and headers match the OpenAPI document; headers are the protocol's alone."""
    with client(shared.url, shared.tokens["ann"]) as remote:
        remote.answer(Queries(rows(2, 5)))
        replies.Budget.model_validate_json(json.dumps(remote.budget()), strict=True)
        assert remote.budget()["unit"] == "row"
        replies.NotedCharge.model_validate(remote.receipts()[-1], strict=True)
    reply = tiny.ask(shared.url, shared.tokens["ann"], rows(3, 6))
    state = replies.JobState.model_validate_json(reply.content, strict=True)
    assert state.status == "done"
    assert len(state.result.labels or []) == 3
    assert set(reply.headers) == {"date", "content-length", "content-type"}
    assert shared.call("ann", f"jobs/{state.job}").json() == reply.json()
    assert shared.call("bob", f"jobs/{state.job}").status_code == 404  # another key's is unknown
    replies.Refusal.model_validate(shared.call("ann", "nowhere").json(), strict=True)


class Broken(SystemEntropy):
    def discrete_gaussian(self, *_):
        raise ValueError("record 17 is a secret")


def test_a_failure_is_one_constant_and_is_not_tried_again(tmp_path, capfd):
    """What was charged stays charged, so a client that retried would spend the budget."""
    made = tiny.make(tmp_path, entropy=Broken())
    with clients(made, "ann") as remote:
        with pytest.raises(TeacherFailed):
            remote.answer(Queries(rows(10, 1)))
        assert remote.budget()["releases"][0]["spent"] == 10
    captured = capfd.readouterr()
    assert "record 17" not in captured.out + captured.err + str(made.lines)
    assert "record 17" in (tmp_path / "errors.log").read_text()
    assert {line["status"] for line in made.lines if line.get("route") == "/v1/labels"} == {503}


def test_logs_and_metrics_hold_public_quantities(shared):
    with client(shared.url, shared.tokens["ann"]) as remote:
        remote.answer(Queries(rows(7, 60)))
        (left,) = [each["left"] for each in remote.budget()["releases"][:1]]
    text = shared.call("carol", "metrics").text
    assert f'labelwall_releases_left{{release="screen",slot="0"}} {float(left)}' in text
    assert 'labelwall_requests_total{method="POST",route="/v1/labels",status="200"}' in text
    names = "releases_spent releases_left ledger_position waiting requests_total requests_created"
    found = re.findall(r"^labelwall_(\w+)|^[^#]", text, re.MULTILINE)
    assert {*found} == {*names.split()}
    fields = {frozenset(line) for line in shared.lines if line["event"] == "request"}
    assert fields == {frozenset({"event", "method", "route", "status", "caller"})}
    assert shared.tokens["ann"].rpartition("_")[2] not in str(shared.lines)


def test_client_and_service_talk_by_https_or_on_this_machine():
    with pytest.raises(InvalidInput, match="certfile"):
        ServiceConfig(host="0.0.0.0")
    other = "ftp://127.0.0.1", "https://", "https://u:p@example.org", "127.0.0.1:80"
    for url in ("http://example.org", *other):
        with pytest.raises(InvalidInput, match="teacher"):
            tiny.RemoteTeacher(url, "key")


def test_a_service_that_is_not_there_is_given_up():
    refusal = pytest.raises(Refused, match="can not be reached")
    with client("http://127.0.0.1:9", "key", patience=0.2, spec=None) as remote, refusal:
        remote.budget()


def test_tls_by_a_certificate_that_the_client_trusts(tmp_path, monkeypatch):
    certificate = self_signed(tmp_path)
    config = ServiceConfig(port=0, certfile=str(certificate), keyfile=str(tmp_path / "key.pem"))
    made = tiny.make(tmp_path / "service")
    with served(made, config) as url:
        assert url.startswith("https://")
        refusal = pytest.raises(Refused, match="ConnectError")
        with client(url, made.tokens["ann"], patience=0.1, spec=None) as stranger, refusal:
            stranger.budget()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with client(url, made.tokens["ann"]) as remote:
            assert len(remote.answer(Queries(rows(3, 1))).labels) == 3


def self_signed(folder):
    """A certificate for 127.0.0.1, its key beside it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    place = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now, pem = datetime.now(UTC), serialization.Encoding.PEM
    end, serial = now + timedelta(days=1), x509.random_serial_number()
    builder = x509.CertificateBuilder(name, name, key.public_key(), serial, now, end)
    certificate = builder.add_extension(place, critical=False).sign(key, hashes.SHA256())
    how = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").touch(0o600)
    (folder / "key.pem").write_bytes(key.private_bytes(pem, *how))
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    return folder / "cert.pem"


def test_a_stopping_service_finishes_what_it_is_at_and_refuses_the_rest(made, tmp_path):
    """The current batch is charged, drawn, stored and sent; what waits is refused uncharged."""
    working, go_on = tiny.held_back(made)
    queue = made.service.queue
    with ThreadPoolExecutor(3) as pool, clients(made, "ann"):
        first = pool.submit(tiny.ask, made.url, made.tokens["ann"], rows(16, 1))
        assert working.wait(60)
        second = pool.submit(tiny.ask, made.url, made.tokens["bob"], rows(16, 2))
        until(lambda: queue.waiting == 2)
        closing = pool.submit(queue.close)
        until(lambda: queue._closing)
        go_on.set()
        closing.result()
        assert len(first.result().json()["result"]["labels"]) == 16
        assert second.result().json()["code"] == "shutting_down"
    state = Ledger(tmp_path / "ledger.sqlite").state
    assert len(state.results) == state.spent[0, "screen"] == 16
    assert audit(tmp_path / "ledger.sqlite").problems == []
