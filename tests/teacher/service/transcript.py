"""The transcript of a conversation with a real service on a tape: every byte that callers see.

Two analysts send extractors, ask, poll and make mistakes; between their requests a custodian may
change the records. The writer takes one step at a time, on command. Each progress report while it
works makes the analysts poll. So the transcript depends on no clock: polls without news are left
out, because their number is a matter of time.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest

from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.classifiers.linear_ensemble import KEY, KEY_BYTES
from labelwall.teacher.custodian import open_custodian
from labelwall.teacher.mechanisms.registry import AnyMechanism
from labelwall.teacher.records.sources import Records
from labelwall.teacher.service import limits
from labelwall.teacher.service.app import create_app
from labelwall.teacher.service.jobs import Job
from labelwall.teacher.service.keys import Keys
from labelwall.teacher.service.queue import RequestQueue
from labelwall.teacher.service.service import Service, Settings, build_service
from labelwall.teacher.sharded_rows import ShardedRows
from labelwall.teacher.shards.config import ScaleConfig
from labelwall.teacher.teacher import Teacher
from labelwall.wall.adversary import EACH, POOLED
from labelwall.wall.datasets.sources import Task
from labelwall.wall.labels.registry import numbered_space
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.wire import SAFETENSORS, encode, encode_extractor
from tests.seeded_noise import SeededNoise
from tests.teacher.service.tiny import FAST, Made, served
from tests.teacher.shards.tiny import matrix as matrix_of
from tests.teacher.shards.tiny import streamed

ANALYSTS = ("ann", "bob")
WAITING = 2  # requests of analysts that may wait: as many as the conversation ever lets wait
BATCH = 16
# A small reply on a used connection waits 40 ms for an acknowledgement.
NO_REUSE = httpx.Limits(max_keepalive_connections=0)
Seen = tuple[object, ...]


@dataclass(frozen=True)
class Case:
    """A mechanism, its data and its extractors.

    ``records``: without the ``extra`` one, which has the same form; ``queries``: ten raw rows.
    ``embedder``: an extractor that is sent but not queried; ``spec``: the one that answers.
    ``shards``: 0 for rows in one piece. ``each``: whether each analyst has a budget.
    """

    mechanism: AnyMechanism
    records: Records
    extra: Records
    queries: np.ndarray
    embedder: ExtractorSpec
    spec: ExtractorSpec
    shards: int = 0
    each: bool = False


@dataclass
class Conversation:
    """The replies to the analysts and the reports to the custodian.

    ``seen``: all replies to the analysts, in order; ``heard``: the teacher's progress since the
    service was made; ``shown``: the progress on the custodian's terminal, from the beginning.
    """

    case: Case
    made: Made
    url: str
    seen: list[Seen] = field(default_factory=list)
    heard: list[tuple[str, int, int]] = field(default_factory=list)
    shown: list[tuple[str, int, int]] = field(default_factory=list)
    jobs: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in ANALYSTS})
    unfinished: set[str] = field(default_factory=set)
    calls: dict[str, int] = field(default_factory=dict)
    last: dict[tuple[str, str], Seen] = field(default_factory=dict)
    gates: list[Gate] = field(default_factory=list)
    http: httpx.Client = field(
        default_factory=lambda: httpx.Client(trust_env=False, timeout=60, limits=NO_REUSE)
    )

    def send(self, name: str, method: str, path: str, body: object = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.made.tokens[name]}", "content-type": SAFETENSORS}
        if method == "POST":
            self.calls[name] = self.calls.get(name, 0) + 1
            # without a key, a call's name is random
            headers["idempotency-key"] = f"call-{self.calls[name]}"
        content = (
            {"json": body} if isinstance(body, dict) else {"content": body, "headers": headers}
        )
        return self.http.request(method, f"{self.url}/v1/{path}", **{"headers": headers, **content})

    def told(self, name: str, method: str, path: str, body: object = None) -> Seen:
        """A request of an analyst, and all of the reply but the time of day."""
        reply = self.send(name, method, path, body)
        headers = tuple(
            sorted((key, value) for key, value in reply.headers.items() if key != "date")
        )
        if reply.status_code in (200, 202) and (method != "GET" or path.startswith("jobs/")):
            job = reply.json()["job"]
            self.jobs[name] += [job] if job not in self.jobs[name] else []
            self.unfinished = (
                self.unfinished | {job} if reply.status_code == 202 else self.unfinished - {job}
            )
        return name, method, path, reply.status_code, headers, reply.content

    def do(self, name: str, method: str, path: str, body: object = None) -> None:
        """A request whose reply goes into the transcript, however often it is made."""
        self.seen.append(self.told(name, method, path, body))

    def look(self) -> None:
        """Poll everything that both analysts can read. Only new replies are added."""
        paths = (
            [("budget", name) for name in ANALYSTS]
            + [("receipts", name) for name in ANALYSTS]
            + [("ledger", "ann")]
        )
        self._look(paths + [(f"jobs/{job}", name) for name in ANALYSTS for job in self.jobs[name]])

    def glance(self) -> None:
        """Poll the jobs last seen unfinished, and one budget. Only new replies are added."""
        paths = [("budget", "ann")]
        self._look(
            paths
            + [
                (f"jobs/{job}", name)
                for name in ANALYSTS
                for job in self.jobs[name]
                if job in self.unfinished
            ]
        )

    def _look(self, paths: list[tuple[str, str]]) -> None:
        for path, name in paths:
            found = self.told(name, "GET", path)
            if found != self.last.get((path, name)):
                self.seen.append(found)
            self.last[path, name] = found

    def watch(self, service: Service) -> None:
        """Take the steps of a service's writer one by one, and look whenever its teacher speaks."""
        self.gates.append(Gate(service.queue, self.look))
        teacher = service.teacher
        inner = teacher._progress

        def speak(what: str, done: int, total: int) -> None:
            inner(what, done, total)
            self.heard.append((what, done, total))
            self.glance()

        teacher._progress = speak

    def drain(self) -> None:
        """Let all that waits be done."""
        self.look()
        while any(gate.step() for gate in self.gates):
            self.look()

    def put(self, name: str, spec: ExtractorSpec) -> None:
        self.do(name, "PUT", f"extractors/{spec.sha256()}", encode_extractor(spec))

    def ask(
        self, name: str, rows: np.ndarray, slot: int = 0, spec: ExtractorSpec | None = None
    ) -> None:
        sha256, mechanism = (spec or self.case.spec).sha256(), self.case.mechanism
        classes, seed = self.case.spec.num_classes, int(np.abs(rows).sum() * 1000)
        matrix = matrix_of(mechanism, self.dimensions, classes, seed)
        route, arrays = "labels", {"inputs": rows}
        if matrix is not None:
            route, arrays = matrix.kind, {matrix.array: matrix.entries}
        self.do(name, "POST", f"{route}?slot={slot}&extractor={sha256}", encode(arrays))

    @property
    def dimensions(self) -> int:
        return 64 if self.case.spec.backbone == "mlp" else self.case.spec.input_shape[-1]

    def add(self) -> None:
        extra = self.case.extra
        body = encode({"inputs": extra.inputs, "labels": extra.labels, "ids": extra.ids})
        assert self.send("carol", "POST", "records", body).status_code in (200, 202)

    def remove(self) -> None:
        assert self.send(
            "carol", "POST", "records/removals", {"ids": self.case.extra.ids.tolist()}
        ).status_code in (200, 202)


class Gate:
    """Lets the writer of a queue take one step at a time; ``look`` is called when one has begun."""

    def __init__(self, queue: RequestQueue, look: Callable[[], None]) -> None:
        self._queue, self._go, self._idle = queue, threading.Semaphore(0), threading.Event()
        inner, step, close = queue._next, queue._step, queue.close

        def wait() -> list[Job]:
            self._idle.set()
            self._go.acquire()
            self._idle.clear()
            return inner()

        def open_and_close() -> None:
            queue._closing = True
            self._go.release(100)  # as many steps as may be left
            close()

        def look_and_step(jobs: list[Job]) -> None:
            look()
            step(jobs)

        queue._next, queue._step, queue.close = wait, look_and_step, open_and_close

    def step(self) -> bool:
        """Do what is next; whether there was anything."""
        if not self._queue.waiting:
            return False
        assert self._idle.wait(60)
        self._idle.clear()
        self._go.release()
        assert self._idle.wait(60)
        return True


@contextmanager
def conversation(
    folder: Path, case: Case, records: Records, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Conversation]:
    """A new service over ``records``, with the same name and keys in every run."""
    numbers = iter(range(100))
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=next(numbers)))
    mechanism, shown = case.mechanism, list[tuple[str, int, int]]()
    plan = Plan(1e9, 1e-5, (Slot(mechanism.fields(), mechanism.releases(1000, 1000)),))
    opened = open_custodian(
        folder, data={}, plan=plan, unsafe=True, adversaries=[EACH if case.each else POOLED]
    )
    (folder / KEY).write_bytes(bytes(range(KEY_BYTES)))
    keys, roles = Keys(folder), {"ann": "analyst", "bob": "analyst", "carol": "custodian"}
    if not keys.listed():
        made_tokens = " ".join(keys.add(name, role) for name, role in roles.items())
        (folder / "tokens").write_text(made_tokens)  # in tests only
    tokens = dict(zip(roles, (folder / "tokens").read_text().split(), strict=True))
    shape, scale = case.records.inputs.shape[1:], ScaleConfig(shards=case.shards)
    space = numbered_space(mechanism.label_space, case.spec.num_classes)
    learned = Task(space, shape)
    monkeypatch.setattr(limits, "WAITING", WAITING)
    sharded = (
        partial(
            Teacher, streamed(records), rows=partial(ShardedRows, scale=scale, input_shape=shape)
        )
        if case.shards
        else None
    )
    settings = Settings(
        FAST,
        learned,
        SeededNoise(3),
        certified=None,
        probe=case.queries,
        sharded=sharded,
        scale=scale,
        batch_size=BATCH,
        progress=lambda *now: shown.append(now),
    )
    service = build_service(opened, lambda: records, settings)
    app = create_app(service, keys, log=lambda *_, **__: None)
    made = Made(app, opened, tokens)
    found = Conversation(case, made, "", shown=shown)
    found.watch(made.service)
    if made.service.analysts is not None:
        build: Callable[..., Service] = made.service.analysts.build

        def watched(own: object) -> Service:
            service = build(own)
            found.watch(service)
            return service

        made.service.analysts.build = watched
    with served(made) as found.url:
        yield found
        found.http.close()


def transcript(
    folder: Path, case: Case, world: str, monkeypatch: pytest.MonkeyPatch
) -> Conversation:
    """The conversation in one of the WORLDS."""
    records = case.records.joined(case.extra) if world == "leaves" else case.records
    with conversation(folder, case, records, monkeypatch) as talk:
        for spec in (case.embedder, case.spec):
            talk.put("ann", spec)
            talk.drain()
        talk.ask("ann", case.queries[:4])
        talk.put("bob", case.spec)
        talk.drain()
        for act in WORLDS[world]:
            act(talk)
        talk.put("ann", case.spec)
        talk.ask("bob", case.queries[2:6])
        talk.drain()
        for spec in (case.embedder, case.embedder, case.spec):
            talk.put("ann", spec)
            talk.drain()
        talk.ask("ann", case.queries[6:])
        talk.ask("bob", case.queries[:4])
        talk.drain()
        _mistakes(talk)
    return talk


def after_a_restart(
    folder: Path, case: Case, later: Records, monkeypatch: pytest.MonkeyPatch
) -> Conversation:
    """The transcript of a service over ``later`` rows, with the caches of one over other rows."""
    with conversation(folder, case, case.records, monkeypatch) as talk:
        for spec in (case.embedder, case.spec):
            talk.put("ann", spec)
            talk.drain()
    with conversation(folder, case, later, monkeypatch) as talk:
        for spec in (case.embedder, case.spec):
            talk.put("ann", spec)
            talk.drain()
        talk.ask("ann", case.queries)
        talk.drain()
    return talk


def _mistakes(talk: Conversation) -> None:
    """Errors, and whatever an analyst may not see."""
    talk.ask("ann", talk.case.queries[:1], slot=7)
    talk.drain()
    talk.do("bob", "GET", f"jobs/{talk.jobs['ann'][0]}")
    for path in ("metrics", "analysts", "health", "nowhere", "ledger"):
        talk.do("bob", "GET", path)
    talk.do("ann", "POST", f"labels?extractor={'0' * 64}", b"")
    talk.do("ann", "POST", "records", b"")
    talk.do("ann", "PUT", f"extractors/{'0' * 64}", encode_extractor(talk.case.spec))


def _settled(talk: Conversation) -> None:
    while any(gate.step() for gate in talk.gates):
        pass


def _act(*names: str) -> Callable[[Conversation], None]:
    """The custodian's requests in order. The last one still waits when the analysts continue."""

    def act(talk: Conversation) -> None:
        for name in names:
            _settled(talk)
            getattr(talk, name)()

    return act


# What the custodian does in the middle. In every world all callers must see the same.
WORLDS: dict[str, tuple[Callable[[Conversation], None], ...]] = {
    "never": (),
    "leaves": (_act("remove", "add", "remove", "add", "remove"),),
    "comes": (_act("add", "remove", "add", "remove", "add"),),
}
