"""Bad requests, each wrong in one thing: none causes a 500 or changes the ledger."""

import gzip
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.service import extractors
from labelwall.teacher.service.service_config import ServiceConfig
from labelwall.wall.features.network import network_of
from labelwall.wall.messages import DECIDED, RELEASED, ExtractorSpec
from labelwall.wall.networks import NETWORKS
from labelwall.wall.wire import MAX_ROWS, SAFETENSORS, encode, encode_extractor
from tests.teacher.service import tiny
from tests.teacher.service.tiny import CLASSES, DIMENSIONS, SPEC, clients, network, rows
from tests.wall.test_wire import BAD

CLASS = DECIDED["class"]
SQL = "'; DROP TABLE entries; --"
LABELS = f"labels?extractor={SPEC.sha256()}"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    config = ServiceConfig(max_body=1, requests_per_second=1e6)
    made = tiny.make(tmp_path_factory.mktemp("bad"), config=config)
    with clients(made, "ann"):  # the extractor is known, so that only what is sent can be wrong
        yield made


def state(made):
    """(newest entry, its hash, noted calls, ids of records): what no bad request may change."""
    ledger = Ledger(made.custodian.directory / "ledger.sqlite").state
    calls = len(made.service.queue.usage.calls())
    return ledger.seq, ledger.head, calls, made.service.teacher.records().ids.tolist()


def post(path, body=b"", media=SAFETENSORS, method="POST"):
    return method, path, body, media


def labels(more="", body=None):
    return post(LABELS + more, encode({"inputs": rows(3, 1)}) if body is None else body)


def inputs(array):
    return labels(body=encode({"inputs": array}))


def matrix(kind, name, array):
    return post(f"{kind}?extractor={SPEC.sha256()}&wait=30", encode({name: array}))


def put(spec, name=None):
    """An extractor under its own identity or another."""
    path = f"extractors/{name or spec.sha256()}?wait=30"
    return "PUT", path, encode_extractor(spec), SAFETENSORS


def plain(backbone, shape=(DIMENSIONS,), classes=CLASSES):
    return put(ExtractorSpec(backbone, shape, classes))


NOWHERE = "0" * 64
BODIES = {f"labels: {name}": post(LABELS, *sent) for name, sent in BAD.items()} | {
    "labels: NaN": inputs(np.full((1, DIMENSIONS), np.nan, np.float32)),
    "labels: another shape": inputs(np.zeros((1, DIMENSIONS + 1), np.float32)),
    "labels: images": inputs(np.zeros((1, DIMENSIONS), np.uint8)),
    "labels: too many rows": inputs(np.zeros((MAX_ROWS + 1, 1), np.float32)),
    "labels: too large": labels(body=bytes((1 << 20) + 1)),
    "labels: a bomb that hides": labels(body=gzip.compress(bytes(1 << 24))),
    "labels: another slot": labels("&slot=1&wait=30"),
    "labels: a negative slot": labels("&slot=-1"),
    "labels: a huge slot": labels(f"&slot={10**30}"),
    "labels: SQL as slot": labels(f"&slot={SQL}"),
    "labels: SQL as extractor": post(f"labels?extractor={SQL}"),
    "labels: no extractor": post("labels"),
    "labels: an unknown extractor": post(f"labels?extractor={NOWHERE}"),
    "labels: an endless wait": labels("&wait=1e9"),
    "labels: a wait of no number": labels("&wait=nan"),
    "cells: of a mechanism without": matrix("cells", "centers", np.zeros((2, DIMENSIONS), np.int8)),
    "weights: of a mechanism without": matrix("weights", "weights", np.zeros((7, 2), np.int16)),
    "weights: too large": matrix("weights", "weights", np.full((3, 2), -(2**15), np.int16)),
    "extractor: unknown backbone": plain("os.system"),
    "extractor: timm's": plain("timm/resnet18"),
    "extractor: for images": plain("hog", (28, 28, 1)),
    "extractor: hog of vectors": plain("hog"),
    "extractor: many classes": plain("mlp", classes=1 << 19),
    "extractor: pickled weights": put(replace(SPEC, backbone="mlp", weights=pickle.dumps({}))),
    # Modes and momenta have no field, so training mode, in which a row's features would depend on
    # the others of its batch, cannot be sent.
    "extractor: training mode": put(network(training=torch.ones(1))),
    "extractor: a center of another length": put(replace(SPEC, center=(0.0,) * 5)),
    "extractor: another's name": put(SPEC, NOWHERE),
    "extractor: SQL as name": put(SPEC, SQL),
    "extractor: too large": ("PUT", f"extractors/{NOWHERE}", bytes((1 << 20) + 1), SAFETENSORS),
    "records: by an analyst": post("records", encode({"inputs": rows(3, 1)})),
    "removals: by an analyst": post("records/removals", b'{"ids": [1]}', "application/json"),
    "jobs: SQL": post(f"jobs/{SQL}", method="GET"),
    "jobs: a path": post("jobs/..%2f..%2fetc%2fpasswd", method="GET"),
    "receipts: none": post("receipts?newest=0", method="GET"),
    "receipts: too many": post(f"receipts?newest={10**30}", method="GET"),
    "a route that is none": post("..%2fkeys.sqlite", method="GET"),
    "a method that is none": post("records", method="DELETE"),
}
BOMB = labels(body=gzip.compress(bytes(1 << 24)))


@pytest.mark.parametrize("name", [*BODIES, "labels: a bomb"])
def test_bad_input_of_an_analyst(running, name):
    """The reply is documented, and quotes nothing."""
    more = {} if name in BODIES else {"content-encoding": "gzip"}
    before, (method, path, *sent) = state(running), BODIES.get(name, BOMB)
    reply = running.call("ann", path, method, *sent, **more)
    assert 400 <= reply.status_code < 500, reply.text
    assert set(reply.json()) == {"code", "message"}
    assert SQL not in reply.text
    assert state(running) == before
    route = "/v1/" + re.sub(r"(?<=jobs/|tors/).*", "", path.partition("?")[0])
    for known, entry in running.app.openapi()["paths"].items():
        if known.partition("{")[0] == route and method.lower() in entry:
            assert str(reply.status_code) in entry[method.lower()]["responses"]


def removal(text):
    return post("records/removals?wait=30", text.encode(), "application/json")


def added(**changed):
    good = {"inputs": rows(2, 7), "labels": np.array([0, 1]), "ids": np.array([900, 901])}
    return post("records?wait=30", encode({**good, **changed}))


IDS = ("1", '["1"]', "[1.5]", "[true]", f"[{2**63}]", f"[{10**400}]", "[NaN]", f'["{SQL}"]')
REMOVALS = [*(f'{{"ids": {ids}}}' for ids in IDS), "{}", "[]", '{"ids": [1], "more": 1}', "{", ""]
CHANGES = {text[:24]: removal(text) for text in (*REMOVALS, "[" * 100000)} | {
    "a class that is none": added(labels=np.array([0, CLASSES])),
    "a negative class": added(labels=np.array([0, -1])),
    "one label short": added(labels=np.array([0])),
    "float labels": added(labels=np.zeros(2, np.float32)),
    "NaN": added(inputs=np.full((2, DIMENSIONS), np.nan, np.float32)),
    "another shape": added(inputs=np.zeros((2, 5), np.float32)),
    "images": added(inputs=np.zeros((2, DIMENSIONS), np.uint8)),
    "one id twice": added(ids=np.array([900, 900])),
    "an id that is there": added(ids=np.array([900, 5])),
    "two columns of ids": added(ids=np.array([[900, 1], [901, 2]])),
}


@pytest.mark.parametrize("name", CHANGES)
def test_bad_changes_of_a_custodian(running, name):
    before, (method, path, *sent) = state(running), CHANGES[name]
    assert running.call("carol", path, method, *sent).status_code == 422
    assert state(running) == before


def test_the_table_can_pass(running):
    """Good requests of the same kinds are accepted, so bad ones are refused for their fault."""
    before = state(running)
    good = [
        (labels("&wait=30"), "ann"),
        (added(), "carol"),
        (removal('{"ids": [900, 901]}'), "carol"),
        (put(network()), "ann"),
        (put(SPEC), "ann"),
    ]
    for (method, path, *sent), name in good:
        assert running.call(name, path, method, *sent).status_code == 200
    assert state(running)[2] == before[2] + 1
    assert not network_of(network(), "cpu")._module.training


def test_a_service_takes_every_network_by_itself_released_or_as_decisions():
    taken = set(extractors.OWN)
    assert taken == {"hog", "raw", "box", *NETWORKS}
    assert len(extractors.OWN) == len(taken)
    for prefix in ("", *DECIDED.values(), RELEASED, CLASS + RELEASED):
        assert ExtractorSpec(f"{prefix}linear", (4,), 3).network in taken
    for name in ("timm/resnet18", f"{RELEASED}{CLASS}linear", f"{CLASS}{CLASS}linear"):
        assert ExtractorSpec(name, (4,), 3).network not in taken
