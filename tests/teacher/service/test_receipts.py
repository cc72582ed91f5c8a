"""Receipts sum to at most what the ledger charged, and to exactly that if no reply was lost."""

import secrets
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import numpy as np
import pytest

from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.batch import RadiusNeighbours
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.sums import ReverseKnn
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import Refused, TeacherFailed
from labelwall.wall.matrices import Cells
from labelwall.wall.messages import Queries
from labelwall.wall.wire import encode
from tests.make import Watched, until
from tests.teacher.service import tiny
from tests.teacher.service.tiny import DIMENSIONS, SPEC, call, client, clients, rows, served

MECHANISMS = {
    "by query": tiny.MECHANISM,
    "prepaid": IndKnn(threshold=0.1, sigma_label=0.3, sigma_count=2.0, rho=0.5),
    "by batch": RadiusNeighbours(radius=0.3, epsilon=1.0),
    "cells": ReverseKnn(centroids=5, neighbours=2, sigma=2.0, margin=3.0),
}
CALLS, CALLERS = 6, 4  # calls of each caller between two starts of a service
Receipts = dict[str, dict[str, int]]  # what each call, or `job` (docs/guide.md), was charged


def asked(name, number):
    """The arrays of a request; of neighbouring numbers the queries are in part the same."""
    if name == "cells":
        centers = np.random.default_rng(number).integers(-20, 20, (5, DIMENSIONS))
        return {"centers": centers.astype(np.int8)}
    return {"inputs": np.concatenate([rows(12, number), rows(12, number + 1), rows(3, number)])}


def answered(teacher, name, number):
    """The receipt of such a call of a teacher or a client."""
    arrays = asked(name, number)
    cells = "centers" in arrays and teacher.count(Cells(arrays["centers"]))
    return (cells or teacher.answer(Queries(arrays["inputs"]))).receipt


def plain(url, token, arrays, key=None):
    """The last state of a job that is asked for without a RemoteTeacher, and polled."""
    named = {} if key is None else {"idempotency-key": key}
    kind = "cells" if "centers" in arrays else "labels"
    path = f"{kind}?extractor={SPEC.sha256()}&wait=0"
    reply = call(url, token, "POST", path, encode(arrays), **named)
    while reply.status_code == 202:
        reply = call(url, token, path=f"jobs/{reply.json()['job']}?wait=5")
    return reply.json()


def breaks():
    """A source that fails in one draw of five, at random, after the charge."""
    draws = np.random.default_rng(5)

    def fail(law, *_):
        if law == "discrete_gaussian" and draws.random() < 0.2:
            raise ValueError("a draw failed")

    return Watched(fail)


def lossy(remote, draws):
    """Lose one request of five on its way there, and one reply of five on its way back."""
    request = remote._http.request

    def unreliable(*arguments, **more):
        fate = draws.random()
        if fate < 0.2:
            raise httpx.ConnectError("lost")
        reply = request(*arguments, **more)
        if fate > 0.8:
            raise httpx.ReadError("lost")
        return reply

    remote._http.request = unreliable


def converse(url, token, seed, *, name, receipts, losses):
    """Random calls of one caller: by a client or plain, new or repeated, concurrent, given up."""
    draws, keys = np.random.default_rng(seed), [f"{token[-8:]}-{number}" for number in range(3)]
    with client(url, token) as remote, ThreadPoolExecutor(2) as pool:
        if losses:
            lossy(remote, draws)
        for _ in range(CALLS):
            number, kind = int(draws.integers(4)), draws.integers(4)
            arrays = asked(name, number)
            try:
                if kind == 0:
                    receipts[secrets.token_hex(8)] = answered(remote, name, number).charged
                else:
                    key = keys[draws.integers(3)] if kind == 1 else None
                    twice = [pool.submit(plain, url, token, arrays, key) for _ in range(2)]
                    for state in (future.result() for future in twice):
                        if "result" in state and not (losses and draws.random() < 0.2):
                            receipts.setdefault(state["job"], state["result"]["receipt"]["charged"])
            except (TeacherFailed, Refused):
                assert losses


@pytest.mark.parametrize(
    "losses", [False, True], ids=["nothing is lost", "replies are lost and draws fail"]
)
@pytest.mark.parametrize("name", MECHANISMS)
def test_receipts_add_up_to_what_the_ledger_charged(tmp_path, name, losses):
    """Concurrent callers who repeat requests, with a restart of the service in between."""
    receipts, how = Receipts(), {"mechanism": MECHANISMS[name], "asked": 100, "answered": 100}
    for life in range(2):
        made = tiny.make(tmp_path, entropy=breaks() if losses else SystemEntropy(), **how)
        talk = partial(converse, name=name, receipts=receipts, losses=losses)
        tokens, seeds = (
            [made.tokens["ann"], made.tokens["bob"]] * 2,
            range(10 * life, 10 * life + 4),
        )
        with served(made) as url, ThreadPoolExecutor(CALLERS) as pool:
            list(pool.map(talk, [url] * CALLERS, tokens, seeds))
    total = sum(map(Counter, receipts.values()), Counter[str]())
    state = Ledger(tmp_path / "ledger.sqlite").state
    spent = Counter({release: count for (_, release), count in state.spent.items()})
    assert total <= spent
    assert losses or total == +spent


@pytest.mark.parametrize("name", ["by query", "by batch", "cells"])
def test_what_another_process_is_charged_meanwhile_is_on_its_own_receipt(tmp_path, name):
    """The other one's whole call falls between the beginning of ours and its charge."""
    made = tiny.make(tmp_path, mechanism=MECHANISMS[name])
    first, ledger, other = made.service.teacher, Ledger(tmp_path / "ledger.sqlite"), tmp_path / "o"
    other.mkdir()
    second = Teacher(first.records, ledger, other, tiny.CLASSES, SystemEntropy())
    for teacher in (first, second):
        teacher.use_extractor(SPEC)
    others, settle = [], first._settle

    def meanwhile(*arguments):
        if not others:
            others.append(answered(second, name, 1))
        return settle(*arguments)

    first._settle = meanwhile
    receipts = [answered(first, name, 2), *others]
    receipts += [answered(teacher, name, n) for teacher in (first, second) for n in (1, 2)]
    charged = sum((Counter(receipt.charged) for receipt in receipts), Counter())
    spent = Ledger(tmp_path / "ledger.sqlite").state.spent
    assert charged == {release: n for (_, release), n in spent.items()}
    made.custodian.close()


def test_a_call_that_is_tried_again_gets_the_receipt_that_was_lost(tmp_path):
    """The first receipt to arrive has the call's charge, after any number of lost replies."""
    with clients(tiny.make(tmp_path), "ann") as remote:
        request, lost = remote._http.request, []

        def loses(*arguments, **more):
            reply = request(*arguments, **more)
            if len(lost) < 3:
                lost.append(reply.json()["result"]["receipt"])
                raise httpx.ReadError("lost")
            return reply

        remote._http.request = loses
        first = remote.answer(Queries(rows(10, 1))).receipt
        again = remote.answer(Queries(rows(10, 1))).receipt
    assert [receipt["charged"] for receipt in lost] == [first.charged] * 3
    assert (first.charged["screen"], first.served) == (10, 0)
    assert (again.charged, again.served) == ({"screen": 0, "aggregate": 0}, 10)
    assert (again.left, again.ledger_head) == (first.left, first.ledger_head)


def test_plain_requests_are_calls_of_their_own_unless_they_have_the_same_idempotency_key(made):
    arrays, other = {"inputs": rows(10, 1)}, {"inputs": rows(10, 2)}
    ann, bob = made.tokens["ann"], made.tokens["bob"]
    calls = [(ann, arrays, "a"), (ann, arrays, "a"), (ann, arrays, None), (ann, arrays, "b")]
    calls += [(ann, other, "a"), (bob, arrays, "a")]  # a key names a call of one caller and content
    with clients(made, "ann"):
        states = [plain(made.url, *each) for each in calls]
        bad = plain(made.url, ann, arrays, "x" * 65)
    receipts = [state["result"]["receipt"] for state in states]
    assert [receipt["charged"]["screen"] for receipt in receipts] == [10, 10, 0, 0, 10, 0]
    assert [receipt["served"] for receipt in receipts] == [0, 0, 10, 10, 0, 10]
    assert len({state["job"] for state in states}) == 5
    assert states[1] == states[0]
    assert states[2]["result"]["labels"] == states[0]["result"]["labels"]
    assert bad["code"] == "invalid_request"


def test_a_call_that_repeats_one_at_work_waits_for_it_and_takes_no_place_of_the_plan(tmp_path):
    """Nor by the caller's cap, which the first call used up. If the first fails, both do."""
    made = tiny.make(tmp_path, quota=10)
    working, go_on = tiny.held_back(made)
    ann = made.tokens["ann"]
    with clients(made, "ann"), ThreadPoolExecutor(3) as pool:
        asks = partial(pool.submit, plain, made.url, ann, {"inputs": rows(10, 1)})
        first = asks()
        assert working.wait(60)
        more = [asks(), asks()]
        until(lambda: made.service.queue.waiting == 3)
        assert not any(future.done() for future in more)
        go_on.set()
        receipts = [future.result()["result"]["receipt"] for future in (first, *more)]
    assert [receipt["charged"]["screen"] for receipt in receipts] == [10, 0, 0]
    assert [receipt["served"] for receipt in receipts] == [0, 10, 10]
    assert Ledger(tmp_path / "ledger.sqlite").state.spent[0, "screen"] == 10
