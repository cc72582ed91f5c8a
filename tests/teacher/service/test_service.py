"""The teacher over a real socket: the answers, receipts and refusals of the teacher in process, for several callers at once."""

from __future__ import annotations

import contextlib
import ipaddress
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from teacher import updates
from teacher.mechanisms.ind_knn import IndKnn
from teacher.mechanisms.radius import RadiusNeighbours
from teacher.mechanisms.reverse_knn import ReverseKnn
from teacher.privacy.audit import audit
from teacher.privacy.database import Place
from teacher.privacy.ledger import Ledger
from teacher.privacy.noise import SystemEntropy
from teacher.privacy.unsafe import UnsafeTape
from teacher.service import models
from teacher.service.calls import Call, Calls
from teacher.service.config import ServiceConfig
from teacher.teacher import Teacher
from tests.postgres import audited
from tests.teacher.privacy.test_ledger import plan
from tests.teacher.service import tiny
from tests.teacher.service.tiny import CLASSES, DIMENSIONS, SPEC, client, rows, served
from wall.cells import Cells
from wall.errors import InvalidInput, Refused, TeacherFailed
from wall.messages import ABSTAINED, Answers, ExtractorSpec, Outcome, Queries, Receipt

LEDGER = "ledger.sqlite"


def in_process(folder: Path, mechanism: object = tiny.MECHANISM) -> Teacher:
    """The same teacher without a service, on the tape that the service of a test is on."""
    made = tiny.make(folder, entropy=UnsafeTape(1), mechanism=mechanism)  # type: ignore[arg-type]
    made.service.teacher.use_extractor(SPEC)
    return made.service.teacher


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[tiny.Made, str]]:
    """(application, URL) of one service for the tests that only look."""
    made = tiny.make(tmp_path_factory.mktemp("shared"))
    with served(made) as url:
        yield made, url


def call(url: str, token: str | None, method: str = "GET", path: str = "budget", **arguments: object) -> httpx.Response:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return httpx.request(method, f"{url}/v1/{path}", headers=headers, trust_env=False, timeout=60, **arguments)  # type: ignore[arg-type]


SEVERAL = {
    "by query": tiny.MECHANISM,
    "prepaid": IndKnn(threshold=0.1, sigma_label=0.3, sigma_count=2.0, rho=0.5),
    "by batch": RadiusNeighbours(radius=0.3, epsilon=1.0),
}


@pytest.mark.parametrize("mechanism", SEVERAL.values(), ids=SEVERAL)
def test_labels_and_receipts_are_those_of_the_teacher_in_process(tmp_path: Path, mechanism: object) -> None:
    """On a tape, to the last entry of the ledger; a repeated row in the request and a repeated request included."""
    asked = np.concatenate([rows(40, 1), rows(3, 1)])
    local = in_process(tmp_path / "local", mechanism)
    made = tiny.make(tmp_path / "service", entropy=UnsafeTape(1), mechanism=mechanism)  # type: ignore[arg-type]
    calls = [Queries(inputs) for inputs in (asked, rows(10, 2), asked)]
    with served(made) as url, client(url, made.tokens["ann"]) as remote:
        there = [remote.answer(queries) for queries in calls]
        remote.export(tmp_path / "copy.sqlite")
    here = [local.answer(queries) for queries in calls]
    for mine, other in zip(here, there, strict=True):
        np.testing.assert_array_equal(mine.labels, other.labels)
        np.testing.assert_array_equal(mine.outcomes, other.outcomes)
    assert [_placed(answers) for answers in here[:2]] == [_placed(answers) for answers in there[:2]]
    assert there[2].receipt == there[0].receipt  # a repeated request finds its finished job
    assert Ledger(tmp_path / "local" / LEDGER).state.results == Ledger(tmp_path / "copy.sqlite").state.results
    assert set(here[0].labels.tolist()) >= {0, 1, 2}
    if isinstance(mechanism, RadiusNeighbours):
        assert there[0].receipt.charged == {"batch": 1}  # 40 queries in one batch, though the teacher's are of 16


def _placed(answers: Answers) -> Receipt:
    """The receipt without the head, which depends on a data set's random name."""
    return replace(answers.receipt, ledger_head="")


def test_counts_are_those_of_the_teacher_in_process(tmp_path: Path) -> None:
    mechanism = ReverseKnn(cells=5, neighbours=2, sigma=2.0, margin=3.0)
    centers = np.random.default_rng(3).integers(-20, 20, (5, DIMENSIONS)).astype(np.int8)
    local = in_process(tmp_path / "local", mechanism).count(Cells(centers))
    made = tiny.make(tmp_path / "service", entropy=UnsafeTape(1), mechanism=mechanism)
    with served(made) as url, client(url, made.tokens["ann"]) as remote, client(url, made.tokens["bob"]) as other:
        found, again = remote.count(Cells(centers)), other.count(Cells(centers))
        with pytest.raises(Refused, match="of a mechanism that answers queries"):
            remote.answer(Queries(rows(1, 1)))
    assert local.counts is not None
    assert np.array_equal(local.counts, found.counts)  # type: ignore[arg-type]
    assert np.array_equal(local.counts, again.counts)  # type: ignore[arg-type]
    assert (found.receipt.charged, again.receipt.charged) == (local.receipt.charged, {"histogram": 0})
    assert (found.receipt.served, again.receipt.served) == (0, 1)


def test_a_restarted_service_serves_what_it_answered(tmp_path: Path, place: Place) -> None:
    """The client notices nothing: its extractor is sent again, its queries are known."""
    made = tiny.make(tmp_path, place=place)
    with served(made) as url, client(url, made.tokens["ann"]) as remote:
        first = remote.answer(Queries(rows(20, 1)))
        port = int(url.rpartition(":")[2])
    again = tiny.make(tmp_path, place=place)
    with served(again, ServiceConfig(port=port)) as url, client(url, again.tokens["ann"], spec=None) as remote:
        remote._spec = SPEC  # as a client that was there before
        second = remote.answer(Queries(rows(20, 1)))
    np.testing.assert_array_equal(first.labels, second.labels)
    assert second.receipt.served == 20
    assert second.receipt.charged == {"screen": 0, "aggregate": 0}


def test_concurrent_callers_share_batches_and_never_overspend(tmp_path: Path, place: Place) -> None:
    """Eight callers ask 8 x 60 queries, a third of them the same, against a cap of 200."""
    made = tiny.make(tmp_path, asked=200, answered=50, place=place)
    gathered: list[int] = []
    together = made.service.teacher.answer_together
    made.service.teacher.answer_together = lambda calls: gathered.append(len(calls)) or together(calls)  # type: ignore[method-assign]
    barrier = threading.Barrier(8)

    def analyst(number: int, url: str) -> tuple[dict[bytes, int], int, int]:
        with client(url, made.tokens["ann" if number % 2 else "bob"]) as remote:
            own = [*rows(40, 10 + number).reshape(-1, 8, DIMENSIONS), *rows(20, 9).reshape(-1, 5, DIMENSIONS)]
            barrier.wait()
            told, charged = {}, np.zeros(2, dtype=int)
            for batch in own:
                answers = remote.answer(Queries(batch))
                charged += [answers.receipt.charged["screen"], answers.receipt.charged["aggregate"]]
                told |= {row.tobytes(): label for row, label in zip(batch, answers.labels.tolist(), strict=True)}
        return told, int(charged[0]), int(charged[1])

    with served(made) as url, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: analyst(number, url), range(8)))
    told = [f[0] for f in found]
    shared = [tuple(t[row.tobytes()] for row in rows(20, 9)) for t in told]
    assert len(set(shared)) == 1  # one answer for each query, whoever asks
    spent = Ledger(place).state.spent
    assert spent[0, "screen"] == 200
    assert spent[0, "aggregate"] <= 50
    # a repeated request of a key gets its stored receipt, so the callers' sums can count a charge twice, never miss one
    assert sum(f[1] for f in found) >= 200
    assert audited(place, tmp_path).problems == []
    assert max(gathered) > 1


def test_who_may_do_what(shared: tuple[tiny.Made, str]) -> None:
    made, url = shared
    everyone, asks, keeps = {"ann": 200, "carol": 200}, {"ann": 0, "carol": 403}, {"ann": 403, "carol": 0}
    rules = {
        ("GET", "budget"): everyone,
        ("GET", "receipts"): everyone,
        ("GET", "ledger"): everyone,
        ("GET", f"jobs/{'0' * 64}"): {"ann": 404, "carol": 404},
        ("GET", "metrics"): {"ann": 403, "carol": 200},
        ("GET", "analysts"): {"ann": 403, "carol": 200},
        ("POST", f"labels?extractor={'0' * 64}"): asks,
        ("POST", f"cells?extractor={'0' * 64}"): asks,
        ("PUT", f"extractors/{'0' * 64}"): asks,
        ("POST", "records"): keeps,
        ("POST", "records/removals"): keeps,
    }
    documented = {
        (method.upper(), path.removeprefix("/v1/")) for path, entry in made.app.openapi()["paths"].items() for method in entry
    }
    named = {(method, path.partition("?")[0].replace("0" * 64, "{}")) for method, path in rules}
    assert named | {("GET", "health")} == {(method, _blank(path)) for method, path in documented}  # no route without a rule
    for (method, path), expected in rules.items():
        for token in (None, "x", "lw_1_2", "lw_" + "0" * 16 + "_" + "0" * 64, made.tokens["ann"][:-1], made.tokens["ann"][:20]):
            assert call(url, token, method, path).status_code == 401, (method, path)
        for name, status in expected.items():
            found = call(url, made.tokens[name], method, path).status_code
            assert found == status or (status == 0 and found not in (401, 403)), (method, path, name)
    assert call(url, None, path="health").json() == {"status": "ok", "version": "1"}


def _blank(path: str) -> str:
    return "/".join("{}" if part.startswith("{") else part for part in path.split("/"))


def test_a_swapped_secret_an_expired_and_a_revoked_key_are_no_keys(shared: tuple[tiny.Made, str]) -> None:
    made, url = shared
    keys = made.service.guard._keys
    dora, emil = keys.add("dora", "analyst"), keys.add("emil", "analyst", expires="2020-01-01")
    assert call(url, dora).status_code == 200
    assert call(url, emil).status_code == 401
    assert call(url, dora[:20] + made.tokens["ann"][20:]).status_code == 401
    keys.revoke("dora")
    assert call(url, dora).status_code == 401
    assert len({call(url, token).text for token in (dora, emil, "x", dora[:20] + made.tokens["ann"][20:])}) == 1


def test_what_leaves_is_documented(shared: tuple[tiny.Made, str]) -> None:
    """Replies, errors and headers have the form of the OpenAPI document; no header says more than the protocol needs."""
    made, url = shared
    token = made.tokens["ann"]
    with client(url, token) as remote:
        remote.answer(Queries(rows(2, 5)))
        models.Budget.model_validate(remote.budget(), strict=True)
        models.Charge.model_validate(remote.receipts()[-1], strict=True)
    body = rows(3, 6)
    from wall.wire import SAFETENSORS, encode

    headers = {"authorization": f"Bearer {token}", "content-type": SAFETENSORS}
    parameters = {"extractor": SPEC.sha256(), "wait": 10}
    reply = httpx.post(
        f"{url}/v1/labels", content=encode({"inputs": body}), headers=headers, params=parameters, trust_env=False, timeout=60
    )
    state = models.Job.model_validate(reply.json(), strict=True)
    assert state.status == "done"
    assert state.result is not None
    assert len(state.result.labels or []) == 3
    assert set(reply.headers) == {"date", "content-length", "content-type"}
    found = call(url, token, path=f"jobs/{state.job}")
    assert found.json() == reply.json()
    assert call(url, made.tokens["bob"], path=f"jobs/{state.job}").status_code == 404  # another key's job is no job
    models.Problem.model_validate(call(url, token, path="nowhere").json(), strict=True)


def test_a_keys_cap_is_below_the_plans_and_a_refused_request_is_not_charged(tmp_path: Path, place: Place) -> None:
    made = tiny.make(tmp_path, quota=30, place=place)
    with served(made) as url, client(url, made.tokens["ann"]) as ann, client(url, made.tokens["bob"]) as bob:
        ann.answer(Queries(rows(25, 1)))
        before = Ledger(place).state.head
        with pytest.raises(Refused, match="more new queries") as refusal:
            ann.answer(Queries(rows(40, 2)))
        assert refusal.value.code == "quota_reached"
        assert Ledger(place).state.head == before
        assert ann.answer(Queries(np.concatenate([rows(25, 1), rows(5, 3)]))).receipt.charged["screen"] == 5
        bob.answer(Queries(rows(40, 2)))
        assert ann.answer(Queries(rows(40, 2))).receipt.served == 40  # known by now, so nothing is charged
        assert ann.budget()["charged"] == ann.budget()["queries"] == 30
        assert [entry["caller"] for entry in ann.receipts()] == ["ann"] * len(ann.receipts())
    again = tiny.make(tmp_path, place=place)  # the cap survives a restart
    assert again.service.desk.calls.charged == {"ann": 30, "bob": 40}
    again.custodian.close()


def test_a_cap_is_kept_by_services_that_share_a_ledger(place: Place) -> None:
    """Each asks its own memory first, which knows nothing of the other; the note's transaction decides."""
    ledger = Ledger.create(place, dataset="d", plan=plan(), unsafe=False)
    one, other = Calls(ledger), Calls(Ledger(place))
    call = Call("ann", 0, 20, 0)
    assert one.note([(call, 50), (replace(call, caller="bob"), None), (call, 50)]) == [True, True, True]
    assert other.charged["ann"] == 0
    assert other.note([(call, 50), (replace(call, queries=10), 50), (replace(call, queries=0), 1), (call, 50)]) == [
        False,
        True,
        True,
        False,
    ]
    assert other.charged["ann"] == 50
    assert [(found.caller, found.queries) for found in one.listed()] == [("ann", 20), ("bob", 20), ("ann", 20), ("ann", 10)]


def test_a_caller_that_another_service_charged_meanwhile_is_refused(tmp_path: Path, place: Place) -> None:
    made = tiny.make(tmp_path, quota=30, place=place)
    with served(made) as url, client(url, made.tokens["ann"]) as ann:
        Calls(Ledger(place)).note([(Call("ann", 0, 25, 0), None)])
        before = Ledger(place).state.head
        with pytest.raises(Refused) as refusal:
            ann.answer(Queries(rows(10, 1)))
        assert refusal.value.code == "quota_reached"
        assert Ledger(place).state.head == before
        assert ann.answer(Queries(rows(5, 1))).receipt.charged["screen"] == 5


def test_past_the_plans_cap_queries_are_refused_one_by_one(tmp_path: Path) -> None:
    made = tiny.make(tmp_path, asked=20, answered=20)
    with served(made) as url, client(url, made.tokens["ann"]) as remote:
        answers = remote.answer(Queries(rows(30, 1)))
        assert remote.budget()["charged"] == 20  # what was refused is not held against the key
    assert (answers.outcomes[20:] == Outcome.CAP_REACHED).all()
    assert (answers.outcomes[:20] != Outcome.CAP_REACHED).all()
    assert (answers.labels[20:] == ABSTAINED).all()


class Broken(SystemEntropy):
    def discrete_gaussian(self, *_: object) -> np.ndarray:
        raise ValueError("record 17 is a secret")


def test_a_failure_is_one_constant_and_is_not_tried_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What was charged stays charged, so a client that tried again by itself would spend the budget."""
    made = tiny.make(tmp_path, entropy=Broken())
    with served(made) as url, client(url, made.tokens["ann"]) as remote:
        with pytest.raises(TeacherFailed):
            remote.answer(Queries(rows(10, 1)))
        assert remote.budget()["releases"][0]["spent"] == 10
        assert "record 17" not in str(made.lines)
    captured = capfd.readouterr()
    assert "record 17" not in captured.out + captured.err
    assert "record 17" in (tmp_path / "errors.log").read_text()
    assert {line["status"] for line in made.lines if line.get("route") == "/v1/labels"} == {503}


def test_records_come_and_go(tmp_path: Path, place: Place) -> None:
    made = tiny.make(tmp_path, place=place)
    new, labels, ids = rows(4, 50), np.array([0, 1, 2, 0]), np.array([500, 501, 502, -3])
    held = lambda: made.service.teacher._opened().ids.tolist()  # noqa: E731
    with served(made) as url, client(url, made.tokens["carol"], spec=None) as carol:
        carol.add(new, labels, ids)
        carol.add(new, labels, ids)  # a repeated request changes nothing
        assert held() == [*range(80), *ids.tolist()]
        with pytest.raises(Refused, match="of no present record"):
            carol.add(new, labels[::-1].copy(), ids)
        carol.remove(np.array([500, 3, 12345]))
        carol.remove(np.array([500, 3, 12345]))
        assert set(held()) == ({*range(80), *ids.tolist()} - {500, 3})
        carol.add(new, labels, ids)  # once more after a removal is no repetition
        assert 500 in held()
        assert httpx.get(url, auth=("", made.tokens["carol"]), trust_env=False).status_code == 200  # the page, on either ledger
    again = tiny.make(tmp_path, place=place)
    assert again.service.ledger.in_custody(updates.counts) == (4, 2)  # 12345, too, will not be taken from the source
    assert set(again.service.teacher._opened().ids.tolist()) == ({*range(80), *ids.tolist()} - {3})
    again.custodian.close()


def test_logs_and_metrics_hold_public_quantities(shared: tuple[tiny.Made, str]) -> None:
    made, url = shared
    with client(url, made.tokens["ann"]) as remote:
        remote.answer(Queries(rows(7, 60)))
        budget = remote.budget()
    text = call(url, made.tokens["carol"], path="metrics").text
    left = {(r["slot"], r["release"]): r["left"] for r in budget["releases"]}
    assert f'labelwall_releases_left{{release="screen",slot="0"}} {float(left[0, "screen"])}' in text
    assert 'labelwall_requests_total{method="POST",route="/v1/labels",status="200"}' in text
    names = {line.partition("{")[0].partition(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    assert names <= {
        "labelwall_releases_spent",
        "labelwall_releases_left",
        "labelwall_ledger_position",
        "labelwall_waiting",
        "labelwall_requests_total",
        "labelwall_requests_created",
    }
    lines = [line for line in made.lines if line["event"] == "request"]
    assert {frozenset(line) for line in lines} == {frozenset({"event", "method", "route", "status", "caller"})}
    secret = made.tokens["ann"].rpartition("_")[2]
    assert secret not in str(made.lines)


@pytest.mark.parametrize("url", ["http://example.org", "ftp://127.0.0.1", "https://", "https://u:p@example.org", "127.0.0.1:80"])
def test_a_client_talks_to_https_or_to_this_machine(url: str) -> None:
    with pytest.raises(InvalidInput, match="teacher"):
        tiny.RemoteTeacher(url, "key")


def test_a_service_that_is_not_there_is_given_up(tmp_path: Path) -> None:
    with (
        client("http://127.0.0.1:9", "key", patience=0.2, spec=None) as remote,
        pytest.raises(Refused, match="can not be reached"),
    ):
        remote.budget()


def test_another_address_needs_tls() -> None:
    with pytest.raises(InvalidInput, match="certfile"):
        ServiceConfig(host="0.0.0.0")


def test_tls_by_a_certificate_that_the_client_trusts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = self_signed(tmp_path)
    config = ServiceConfig(port=0, certfile=str(certificate), keyfile=str(tmp_path / "key.pem"))
    made = tiny.make(tmp_path / "service")
    with served(made, config) as url:
        assert url.startswith("https://")
        with client(url, made.tokens["ann"], patience=0.1, spec=None) as stranger, pytest.raises(Refused, match="ConnectError"):
            stranger.budget()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with client(url, made.tokens["ann"]) as remote:
            assert len(remote.answer(Queries(rows(3, 1))).labels) == 3


def self_signed(folder: Path) -> Path:
    """A certificate for 127.0.0.1, its key beside it."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now, place = datetime.now(UTC), x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
    certificate = builder.add_extension(place, critical=False).sign(key, hashes.SHA256())
    plain = serialization.NoEncryption(), serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, plain[1], plain[0]))
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return folder / "cert.pem"


def test_a_stopping_service_finishes_what_it_is_at_and_refuses_the_rest(tmp_path: Path) -> None:
    """The batch at work is charged, drawn, stored and sent; what waits was not charged, and is told to come back."""
    made, working, go_on = tiny.make(tmp_path), threading.Event(), threading.Event()
    teacher = made.service.teacher
    together = teacher.answer_together
    teacher.answer_together = lambda calls: (working.set(), go_on.wait(60), together(calls))[2]  # type: ignore[method-assign]

    def ask(url: str, name: str, seed: int) -> Answers:
        with client(url, made.tokens[name], patience=0, spec=None) as remote:
            remote._spec = SPEC
            return remote.answer(Queries(rows(16, seed)))

    with ThreadPoolExecutor(3) as pool, served(made) as url:
        with client(url, made.tokens["ann"]):
            pass
        first = pool.submit(ask, url, "ann", 1)
        assert working.wait(60)
        second = pool.submit(ask, url, "bob", 2)
        while made.service.desk.waiting < 2:
            time.sleep(0.01)
        closing = pool.submit(made.service.desk.close)
        while not made.service.desk._closing:
            time.sleep(0.01)
        go_on.set()
        closing.result()
        assert len(first.result().labels) == 16
        with pytest.raises(Refused) as refusal:
            second.result()
        assert refusal.value.code == "shutting_down"
    state = Ledger(tmp_path / LEDGER).state
    assert len(state.results) == state.spent[0, "screen"] == 16
    assert audit(tmp_path / LEDGER).problems == []


def test_bodies_that_arrive_slowly_fill_the_room_and_end(shared: tuple[tiny.Made, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is being read counts before it has come, so that no number of callers takes more memory than there is room for."""
    made, url = shared
    monkeypatch.setattr("teacher.service.guard.SLOWEST", 2)
    monkeypatch.setattr(made.service.bodies, "_room", 1000)
    go_on, headers = threading.Event(), {"authorization": f"Bearer {made.tokens['carol']}", "content-length": "900"}

    def slowly() -> Iterator[bytes]:
        yield b"x"
        go_on.wait(60)
        yield b"x" * 899

    def post(content: object, **more: str) -> httpx.Response:
        send = {"headers": {**headers, **more}, "trust_env": False, "timeout": 60}
        return httpx.post(f"{url}/v1/records/removals", content=content, **send)  # type: ignore[arg-type]

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(post, slowly())
        while made.service.bodies._held != 900:
            time.sleep(0.01)
        crowded = post(b"x" * 900)
        assert (crowded.status_code, crowded.json()["code"]) == (503, "busy")
        while made.service.bodies._held:  # until its time is over
            time.sleep(0.01)
        go_on.set()
        with contextlib.suppress(httpx.TransportError):  # the connection may be closed by then
            assert slow.result().json()["code"] == "invalid_request"
    assert post(b"x" * 900).json()["code"] == "invalid_request"  # read, and not understood


def test_a_fast_caller_is_told_to_come_back(tmp_path: Path) -> None:
    made = tiny.make(tmp_path, config=ServiceConfig(requests_per_second=0.001))
    with served(made) as url:
        statuses = [call(url, made.tokens["ann"]).status_code for _ in range(12)]
        assert statuses == [200] * 10 + [429] * 2  # ten at once, then one in a thousand seconds
        assert call(url, made.tokens["bob"]).status_code == 200
        assert call(url, made.tokens["ann"]).headers["retry-after"] == "1"


def test_an_extractor_that_would_see_other_records_can_not_be_sent(shared: tuple[tiny.Made, str]) -> None:
    """A mode, a momentum or code has no field; a weight that is none of the network's is refused. See also the test of what
    training mode would do, in tests/wall/test_backbones.py: there a row's features change with its company."""
    import safetensors.torch
    import torch

    from wall import backbones

    made, url = shared
    state = backbones.build("mlp", input_shape=(DIMENSIONS,), num_classes=CLASSES).state_dict()
    spec = ExtractorSpec("mlp", (DIMENSIONS,), CLASSES, safetensors.torch.save(state), scale=50.0)
    with client(url, made.tokens["ann"], spec=None) as remote:
        remote.use_extractor(spec)
        assert not made.service.teacher._embedder._network._backbone.training  # type: ignore[union-attr]
        for extra in (
            {"training": torch.ones(1)},
            {"trunk.1.running_mean": torch.zeros(128)},
            {"trunk.1.track_running_stats": torch.zeros(1)},
        ):
            weights = safetensors.torch.save({**state, **extra})
            with pytest.raises(Refused, match="exactly the tensors"):
                remote.use_extractor(ExtractorSpec("mlp", (DIMENSIONS,), CLASSES, weights, scale=50.0))
        with pytest.raises(Refused, match=r"extractor\.backbone"):
            remote.use_extractor(ExtractorSpec("timm/resnet18", (DIMENSIONS,), CLASSES))
        with pytest.raises(Refused, match="num_classes"):
            remote.use_extractor(ExtractorSpec("mlp", (DIMENSIONS,), 1 << 19, b"", scale=50.0))
        remote.use_extractor(SPEC)
