"""Bad requests, each wrong in one thing: none causes a 500 or changes the ledger."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import safetensors.torch

from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.service.config import ServiceConfig
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.networks import architectures as backbones
from labelwall.wall.wire import MAX_ROWS, NPY, SAFETENSORS, encode, encode_extractor
from tests.teacher.service import tiny
from tests.teacher.service.tiny import CLASSES, DIMENSIONS, SPEC, client, rows, served
from tests.wall.test_wire import BAD

SQL = "'; DROP TABLE entries; --"
LABELS = f"labels?extractor={SPEC.sha256()}"


@dataclass
class Running:
    made: tiny.Made
    url: str
    folder: Path

    def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        media: str = SAFETENSORS,
        role: str = "ann",
        **headers: str,
    ) -> httpx.Response:
        headers = {
            "authorization": f"Bearer {self.made.tokens[role]}",
            "content-type": media,
            **headers,
        }
        return httpx.request(
            method,
            f"{self.url}/v1/{path}",
            content=body,
            headers=headers,
            trust_env=False,
            timeout=60,
        )

    def head(self) -> tuple[int, str, int]:
        """(newest entry, its hash, noted calls): what no bad request may change."""
        ledger = Ledger(self.folder / "ledger.sqlite")
        found = ledger.state.seq, ledger.state.head, len(self.made.service.queue.usage.calls())
        ledger.close()
        return found


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("bad")
    made = tiny.make(
        folder,
        config=ServiceConfig(max_body=1, requests_per_second=1e6),
    )
    with served(made) as url:
        with client(url, made.tokens["ann"]):
            pass  # the extractor is known, so that only what is sent can be wrong
        yield Running(made, url, folder)


def vectors(**changes: object) -> bytes:
    return encode({"inputs": rows(3, 1), **changes})


def sent(spec: ExtractorSpec, name: str | None = None) -> tuple[str, str, bytes]:
    """A PUT of an extractor, under its own identity or another."""
    return "PUT", f"extractors/{name or spec.sha256()}?wait=30", encode_extractor(spec)


def network(**tensors: object) -> ExtractorSpec:
    """A small network with other tensors than it should have."""
    state = backbones.build("mlp", input_shape=(DIMENSIONS,), num_classes=CLASSES).state_dict()
    weights = safetensors.torch.save(
        {name: value for name, value in {**state, **tensors}.items() if value is not None}
    )
    return ExtractorSpec("mlp", (DIMENSIONS,), CLASSES, weights, scale=50.0)


def nan_network() -> ExtractorSpec:
    import torch

    return network(**{"head.bias": torch.full((CLASSES,), torch.nan)})


def extra_network() -> ExtractorSpec:
    import torch

    return network(more=torch.zeros(1))


BODIES = {
    f"labels: {name}": ("POST", LABELS, body, media, {}) for name, (body, media) in BAD.items()
} | {
    "labels: NaN": (
        "POST",
        LABELS,
        encode({"inputs": np.full((1, DIMENSIONS), np.nan, np.float32)}),
        SAFETENSORS,
        {},
    ),
    "labels: another shape": (
        "POST",
        LABELS,
        encode({"inputs": np.zeros((1, DIMENSIONS + 1), np.float32)}),
        SAFETENSORS,
        {},
    ),
    "labels: images": (
        "POST",
        LABELS,
        encode({"inputs": np.zeros((1, DIMENSIONS), np.uint8)}),
        SAFETENSORS,
        {},
    ),
    "labels: too many rows": (
        "POST",
        LABELS,
        encode({"inputs": np.zeros((MAX_ROWS + 1, 1), np.float32)}),
        SAFETENSORS,
        {},
    ),
    "labels: too large": ("POST", LABELS, bytes((1 << 20) + 1), SAFETENSORS, {}),
    "labels: a bomb": (
        "POST",
        LABELS,
        gzip.compress(bytes(1 << 24)),
        SAFETENSORS,
        {"content-encoding": "gzip"},
    ),
    "labels: a bomb that hides": ("POST", LABELS, gzip.compress(bytes(1 << 24)), SAFETENSORS, {}),
    "labels: another slot": ("POST", f"{LABELS}&slot=1&wait=30", vectors(), SAFETENSORS, {}),
    "labels: a negative slot": ("POST", f"{LABELS}&slot=-1", vectors(), SAFETENSORS, {}),
    "labels: a huge slot": ("POST", f"{LABELS}&slot={10**30}", vectors(), SAFETENSORS, {}),
    "labels: SQL as slot": ("POST", f"{LABELS}&slot={SQL}", vectors(), SAFETENSORS, {}),
    "labels: SQL as extractor": ("POST", f"labels?extractor={SQL}", vectors(), SAFETENSORS, {}),
    "labels: no extractor": ("POST", "labels", vectors(), SAFETENSORS, {}),
    "labels: an unknown extractor": (
        "POST",
        f"labels?extractor={'0' * 64}",
        vectors(),
        SAFETENSORS,
        {},
    ),
    "labels: an endless wait": ("POST", f"{LABELS}&wait=1e9", vectors(), SAFETENSORS, {}),
    "labels: a wait of no number": ("POST", f"{LABELS}&wait=nan", vectors(), SAFETENSORS, {}),
    "cells: of a mechanism without": (
        "POST",
        f"cells?extractor={SPEC.sha256()}&wait=30",
        encode({"centers": np.zeros((2, DIMENSIONS), np.int8)}),
        SAFETENSORS,
        {},
    ),
    "cells: floats": (
        "POST",
        f"cells?extractor={SPEC.sha256()}",
        encode({"centers": rows(2, 1)}),
        SAFETENSORS,
        {},
    ),
    "cells: none": (
        "POST",
        f"cells?extractor={SPEC.sha256()}",
        encode({"centers": np.zeros((0, 6), np.int8)}),
        SAFETENSORS,
        {},
    ),
    "weights: of a mechanism without": (
        "POST",
        f"weights?extractor={SPEC.sha256()}&wait=30",
        encode({"weights": np.zeros((DIMENSIONS + 1, 2), np.int16)}),
        SAFETENSORS,
        {},
    ),
    "weights: too large": (
        "POST",
        f"weights?extractor={SPEC.sha256()}",
        encode({"weights": np.full((3, 2), -(2**15), np.int16)}),
        SAFETENSORS,
        {},
    ),
    "weights: not a number": (
        "POST",
        f"weights?extractor={SPEC.sha256()}",
        encode({"weights": np.full((3, 2), np.nan, np.float32)}),
        SAFETENSORS,
        {},
    ),
    "extractor: unknown backbone": (
        *sent(ExtractorSpec("os.system", (DIMENSIONS,), CLASSES)),
        SAFETENSORS,
        {},
    ),
    "extractor: timm's": (
        *sent(ExtractorSpec("timm/resnet18", (DIMENSIONS,), CLASSES)),
        SAFETENSORS,
        {},
    ),
    "extractor: for images": (*sent(ExtractorSpec("hog", (28, 28, 1), CLASSES)), SAFETENSORS, {}),
    "extractor: hog of vectors": (
        *sent(ExtractorSpec("hog", (DIMENSIONS,), CLASSES)),
        SAFETENSORS,
        {},
    ),
    "extractor: many classes": (
        *sent(ExtractorSpec("mlp", (DIMENSIONS,), 1 << 19)),
        SAFETENSORS,
        {},
    ),
    "extractor: pickled weights": (
        *sent(replace(SPEC, backbone="mlp", weights=pickle.dumps({}))),
        SAFETENSORS,
        {},
    ),
    "extractor: no weights": (*sent(replace(SPEC, backbone="mlp")), SAFETENSORS, {}),
    "extractor: one tensor more": (*sent(extra_network()), SAFETENSORS, {}),
    "extractor: one tensor less": (*sent(network(**{"head.bias": None})), SAFETENSORS, {}),
    "extractor: NaN": (*sent(nan_network()), SAFETENSORS, {}),
    "extractor: a center of another length": (
        *sent(replace(SPEC, center=(0.0,) * 5)),
        SAFETENSORS,
        {},
    ),
    "extractor: another's name": (*sent(SPEC, "0" * 64), SAFETENSORS, {}),
    "extractor: SQL as name": (*sent(SPEC, SQL), SAFETENSORS, {}),
    "extractor: too large": (
        "PUT",
        f"extractors/{'0' * 64}",
        bytes((1 << 20) + 1),
        SAFETENSORS,
        {},
    ),
    "records: by an analyst": (
        "POST",
        "records",
        vectors(labels=np.zeros(3, np.int64), ids=np.arange(3)),
        SAFETENSORS,
        {},
    ),
    "removals: by an analyst": (
        "POST",
        "records/removals",
        b'{"ids": [1]}',
        "application/json",
        {},
    ),
    "jobs: SQL": ("GET", f"jobs/{SQL}", b"", SAFETENSORS, {}),
    "jobs: a path": ("GET", "jobs/..%2f..%2fetc%2fpasswd", b"", SAFETENSORS, {}),
    "receipts: none": ("GET", "receipts?newest=0", b"", SAFETENSORS, {}),
    "receipts: too many": ("GET", f"receipts?newest={10**30}", b"", SAFETENSORS, {}),
    "a route that is none": ("GET", "..%2fkeys.sqlite", b"", SAFETENSORS, {}),
    "a method that is none": ("DELETE", "records", b"", SAFETENSORS, {}),
}


@pytest.mark.parametrize("name", BODIES)
def test_bad_input_of_an_analyst(running: Running, name: str) -> None:
    method, path, body, media, headers = BODIES[name]
    before = running.head()
    reply = running.send(method, path, body, media, **headers)
    assert 400 <= reply.status_code < 500, reply.text
    assert set(reply.json()) == {"code", "message"}
    assert SQL not in reply.text
    assert running.head() == before


REMOVALS = [
    "{}",
    "[]",
    '{"ids": 1}',
    '{"ids": ["1"]}',
    '{"ids": [1.5]}',
    '{"ids": [true]}',
    f'{{"ids": [{2**63}]}}',
    f'{{"ids": [{10**400}]}}',
]
REMOVALS += [
    '{"ids": [1], "more": 1}',
    '{"ids": [NaN]}',
    json.dumps({"ids": [SQL]}),
    "{",
    "[" * 100000,
    "",
]
LABELLED = {"inputs": rows(2, 7), "labels": np.array([0, 1]), "ids": np.array([900, 901])}
ADDED: dict[str, dict[str, np.ndarray]] = {
    "a class that is none": {"labels": np.array([0, CLASSES])},
    "a negative class": {"labels": np.array([0, -1])},
    "one label short": {"labels": np.array([0])},
    "float labels": {"labels": np.zeros(2, np.float32)},
    "NaN": {"inputs": np.full((2, DIMENSIONS), np.nan, np.float32)},
    "another shape": {"inputs": np.zeros((2, 5), np.float32)},
    "images": {"inputs": np.zeros((2, DIMENSIONS), np.uint8)},
    "one id twice": {"ids": np.array([900, 900])},
    "an id that is there": {"ids": np.array([900, 5])},
    "two columns of ids": {"ids": np.array([[900, 1], [901, 2]])},
}


@pytest.mark.parametrize("text", REMOVALS, ids=lambda text: text[:24])
def test_bad_removals_of_a_custodian(running: Running, text: str) -> None:
    before = running.head(), running.made.service.teacher.records().ids.tolist()
    reply = running.send(
        "POST", "records/removals?wait=30", text.encode(), "application/json", role="carol"
    )
    assert 400 <= reply.status_code < 500, reply.text
    assert (running.head(), running.made.service.teacher.records().ids.tolist()) == before


@pytest.mark.parametrize("name", ADDED)
def test_bad_records_of_a_custodian(running: Running, name: str) -> None:
    before = running.head(), running.made.service.teacher.records().ids.tolist()
    reply = running.send(
        "POST", "records?wait=30", encode({**LABELLED, **ADDED[name]}), role="carol"
    )
    assert reply.status_code == 422, reply.text
    assert (running.head(), running.made.service.teacher.records().ids.tolist()) == before


def test_the_table_can_pass(running: Running) -> None:
    """Good requests of the same kinds are accepted, so bad ones are refused for their fault."""
    before = running.head()
    assert running.send("POST", f"{LABELS}&wait=30", vectors()).status_code == 200
    file = (
        b"\x93NUMPY\x01\x00v\x00"
        + b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 6), }".ljust(117)
        + b"\n"
    )
    assert (
        running.send("POST", f"{LABELS}&wait=30", file + rows(3, 2).tobytes(), NPY).status_code
        == 200
    )
    assert (
        running.send("POST", "records?wait=30", encode(LABELLED), role="carol").status_code == 200
    )
    assert (
        running.send(
            "POST", "records/removals?wait=30", b'{"ids": [900, 901]}', "application/json", "carol"
        ).status_code
        == 200
    )
    method, path, body = sent(network())
    assert running.send(method, path, body).status_code == 200
    method, path, body = sent(SPEC)
    assert running.send(method, path, body).status_code == 200
    assert running.head()[2] == before[2] + 2
