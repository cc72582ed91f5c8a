"""A service over a few raw vectors: the application, its keys, and a real socket before it."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from fastapi import FastAPI

from labelwall.teacher.custodian import Custodian, open_custodian
from labelwall.teacher.ledger.url import LedgerUrl, Place
from labelwall.teacher.mechanisms.registry import AnyMechanism
from labelwall.teacher.mechanisms.votes import PrivateKnn
from labelwall.teacher.noise.entropy import Entropy, SystemEntropy
from labelwall.teacher.records.private_records import Records
from labelwall.teacher.service.app import create_app
from labelwall.teacher.service.keys import Keys
from labelwall.teacher.service.server import address, listen, server
from labelwall.teacher.service.service import Service, build_service
from labelwall.teacher.service.service_config import ServiceConfig, Settings
from labelwall.wall.client import RemoteTeacher
from labelwall.wall.datasets.data_config import Task
from labelwall.wall.errors import Refused
from labelwall.wall.guarantee import POOLED, Unit
from labelwall.wall.label_kinds import ClassLabels
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.wire import SAFETENSORS, encode
from tests.make import plan_of, rows

DIMENSIONS, CLASSES, RECORDS = 6, 3, 80
SPEC = ExtractorSpec("raw", (DIMENSIONS,), CLASSES)
# audited in no time
MECHANISM = PrivateKnn(k=9, threshold=2, sigma_screen=75.0, sigma_vote=25.0, sample_rate=0.15)
FAST = ServiceConfig(port=0, requests_per_second=1e6)
# A new connection for each request
HTTP = httpx.Client(trust_env=False, timeout=60, limits=httpx.Limits(max_keepalive_connections=0))
LEARNED = Task(ClassLabels(tuple("abc")), (DIMENSIONS,))


def records_of(n: int = RECORDS) -> Records:
    return Records(rows(n, 0), np.arange(n) % CLASSES, np.arange(n))


def network(**tensors: Any) -> ExtractorSpec:
    """A small untrained network, with other ``tensors`` than it should have (None: without)."""
    import safetensors.torch

    from labelwall.wall.networks import build

    state = build("mlp", input_shape=(DIMENSIONS,), num_classes=CLASSES).state_dict()
    changed = {name: each for name, each in {**state, **tensors}.items() if each is not None}
    weights = safetensors.torch.save(changed)
    return ExtractorSpec("mlp", (DIMENSIONS,), CLASSES, weights, scale=50.0)


@dataclass
class Made:
    """A service: ann and bob are analysts, carol is the custodian. ``url``: while it is served."""

    app: FastAPI
    custodian: Custodian
    tokens: dict[str, str]
    lines: list[dict] = field(default_factory=list)
    url: str = ""

    @property
    def service(self) -> Service:
        return self.app.state.service

    def own(self, name: str) -> Service:
        assert self.service.analysts is not None
        return self.service.analysts.of(name)

    def call(
        self, name: str, path: str = "budget", method: str = "GET", *body: Any, **how: Any
    ) -> httpx.Response:
        return call(self.url, self.tokens[name], method, path, *body, **how)

    def browse(self, path: str = "/", method: str = "GET", name: str = "carol") -> httpx.Response:
        """A request of a browser for the custodian's page."""
        auth = ("any", self.tokens.get(name, name))
        return HTTP.request(method, self.url + path, auth=auth)


def make(
    folder: Path,
    *,
    mechanism: AnyMechanism = MECHANISM,
    asked: int = 1000,
    answered: int = 1000,
    quota: int | None = None,
    place: Place | None = None,
    anchor: Place | None = None,
    records: Callable[[], Records] = records_of,
    adversary: str = POOLED,
    unit: Unit = "row",
    **settings: Any,
) -> Made:
    """A new service in ``folder``, or that of an earlier call.

    ``quota``: cap on ann's new queries; ``place``: the ledger's, a file in the folder unless it is
    a server's; ``adversary``: EACH for a budget for each analyst; ``settings``: other ones.
    """
    entropy: Entropy = settings.pop("entropy", SystemEntropy())
    chosen = {"config": FAST, "task": LEARNED, "certified": 1.0, "batch_size": 16, **settings}
    custodian = open_custodian(
        folder,
        data={},
        plan=plan_of(mechanism, asked, answered, unit=unit),
        unsafe=entropy.unsafe,
        anchor=anchor,
        ledger_url=place if isinstance(place, LedgerUrl) else None,
        adversaries=[adversary],
    )
    keys, lines = Keys(folder), list[dict]()
    if not keys.listed():
        ann, bob = keys.add("ann", "analyst", quota), keys.add("bob", "analyst")
        (folder / "tokens").write_text(" ".join([ann, bob, keys.add("carol", "custodian")]))
    names, secrets = ("ann", "bob", "carol"), (folder / "tokens").read_text().split()
    service = build_service(custodian, records, Settings(entropy=entropy, **chosen))
    app = create_app(service, keys, lambda event, **more: lines.append({"event": event, **more}))
    return Made(app, custodian, dict(zip(names, secrets, strict=True)), lines)


@contextmanager
def served(made: Made, config: ServiceConfig | None = None) -> Iterator[str]:
    """The URL of an application behind uvicorn, in a thread of this process; stops gracefully."""
    config = config or ServiceConfig(port=0)
    with listen(config) as bound:
        running = server(made.app, config)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            while not running.started:
                time.sleep(0.01)
                assert thread.is_alive()
            made.url = address(config, bound)
            yield made.url
        finally:
            running.should_exit = True
            thread.join()
            made.custodian.close()


class Client(RemoteTeacher):
    """A client that sends what custodians do, too."""

    def receipts(self) -> list[dict[str, Any]]:
        """The calls that were charged: this key's own, or everybody's for a custodian."""
        return self._read(self._send("GET", "receipts").json, list)

    def add(self, inputs: np.ndarray, labels: np.ndarray, ids: np.ndarray) -> None:
        body = encode({"inputs": inputs, "labels": labels, "ids": ids})
        self._change("records", content=body, headers={"content-type": SAFETENSORS})

    def remove(self, ids: np.ndarray) -> None:
        self._change("records/removals", json={"ids": ids.tolist()})

    def _change(self, path: str, **content: Any) -> None:
        def send() -> httpx.Response:
            reply = self._http.post(path, params={"wait": 20.0}, **content)
            if reply.status_code not in (200, 202):
                raise Refused(reply.json()["code"], reply.json()["message"])
            return reply

        self._job(send, "changing records", dict)


@contextmanager
def client(
    url: str, token: str, patience: float = 20.0, spec: ExtractorSpec | None = SPEC
) -> Iterator[Client]:
    """A client that has sent its extractor, unless that is None."""
    teacher = Client(url, token, patience=patience)
    try:
        if spec is not None:
            teacher.use_extractor(spec)
        yield teacher
    finally:
        teacher.close()


@contextmanager
def clients(made: Made, *names: str, **options: Any) -> Iterator[Any]:
    """The clients of a service that is served within, one or several; carol asks nothing."""
    with ExitStack() as stack:
        url, opened = stack.enter_context(served(made)), []
        for name in names:
            how = options | ({"spec": None} if name == "carol" else {})
            opened.append(stack.enter_context(client(url, made.tokens[name], **how)))
        yield opened[0] if len(opened) == 1 else opened


def call(
    url: str,
    token: str | None,
    method: str = "GET",
    path: str = "budget",
    body: bytes | None = None,
    media: str = SAFETENSORS,
    **headers: str,
) -> httpx.Response:
    sent = headers if body is None else {"content-type": media, **headers}
    sent |= {} if token is None else {"authorization": f"Bearer {token}"}
    return HTTP.request(method, f"{url}/v1/{path}", content=body, headers=sent)


def ask(url: str, token: str, inputs: np.ndarray, wait: float = 30.0) -> httpx.Response:
    path = f"labels?extractor={SPEC.sha256()}&wait={wait}"
    return call(url, token, "POST", path, encode({"inputs": inputs}))


def text_of(page: httpx.Response) -> str:
    """A page without its tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page.text))


def held_back(made: Made) -> tuple[threading.Event, threading.Event]:
    """(set when the teacher begins to answer, to be set by the test before it goes on)."""
    working, go_on, teacher = threading.Event(), threading.Event(), made.service.teacher
    together = teacher.answer_together

    def answer(calls: Any) -> Any:
        working.set()
        assert go_on.wait(60)
        return together(calls)

    teacher.answer_together = answer
    return working, go_on
