"""Every byte that two analysts see of a real service on a tape, while a custodian changes records.
The writer takes one step at a time, on command; polls without news are left out."""

import json
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelwall.teacher.classifiers.linear_ensemble import KEY, KEY_BYTES
from labelwall.teacher.custodian import Custodian
from labelwall.teacher.mechanisms.registry import AnyMechanism
from labelwall.teacher.records.private_records import Records
from labelwall.teacher.service import callers
from labelwall.teacher.service.queue import Job, RequestQueue
from labelwall.teacher.service.service import Service
from labelwall.teacher.shards.scale_config import ScaleConfig
from labelwall.teacher.shards.shards import ShardedRows
from labelwall.teacher.teacher import Teacher
from labelwall.wall.datasets.data_config import Task
from labelwall.wall.guarantee import EACH, POOLED
from labelwall.wall.label_kinds import numbered_space
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.wire import encode, encode_extractor
from tests.seeded_noise import SeededNoise
from tests.teacher.service.tiny import Made, make, served
from tests.teacher.shards.tiny import matrix as matrix_of
from tests.teacher.shards.tiny import streamed

ANALYSTS = ("ann", "bob")
WAITING = 2  # requests of analysts that may wait: as many as the conversation ever lets wait
BATCH = 16
Seen = tuple[object, ...]
Shown = list[tuple[str, int, int]]  # progress


@dataclass(frozen=True)
class Case:
    """``embedder``: an extractor that is sent but not queried; ``spec``: the one that answers."""

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
    """``seen``: all replies to the analysts; ``heard``: the teacher's progress since the service
    was made; ``shown``: the progress on the custodian's terminal, from the beginning.
    """

    case: Case
    made: Made
    seen: list[Seen] = field(default_factory=list)
    heard: Shown = field(default_factory=list)
    shown: Shown = field(default_factory=list)

    def __post_init__(self) -> None:
        self.jobs: dict[str, list[str]] = {name: [] for name in ANALYSTS}
        self.unfinished, self.calls = set[str](), Counter[str]()
        self.last: dict[tuple[str, str], Seen] = {}
        self.gates: list[Gate] = []

    def request(self, name: str, method: str, path: str, body: bytes | None = None) -> Seen:
        """A request of an analyst, and all of the reply but the time of day."""
        named = {}
        if method == "POST":
            self.calls[name] += 1
            named = {"idempotency-key": f"call-{self.calls[name]}"}  # else its name is random
        reply = self.made.call(name, path, method, body, **named)
        headers = tuple(sorted(each for each in reply.headers.items() if each[0] != "date"))
        if reply.status_code in (200, 202) and (method != "GET" or path.startswith("jobs/")):
            job = reply.json()["job"]
            if job not in self.jobs[name]:
                self.jobs[name].append(job)
            (self.unfinished.add if reply.status_code == 202 else self.unfinished.discard)(job)
        return name, method, path, reply.status_code, headers, reply.content

    def do(self, name: str, method: str, path: str, body: bytes | None = None) -> None:
        """A request whose reply goes into the transcript, however often it is made."""
        self.seen.append(self.request(name, method, path, body))

    def look(self) -> None:
        """Poll everything that both analysts can read. Only new replies are added."""
        self._poll(*product(("budget", "receipts"), ANALYSTS), ("ledger", "ann"), *self._jobs())

    def glance(self) -> None:
        """Poll the jobs last seen unfinished, and one budget. Only new replies are added."""
        waiting = [(path, name) for path, name in self._jobs() if path[5:] in self.unfinished]
        self._poll(("budget", "ann"), *waiting)

    def _jobs(self) -> list[tuple[str, str]]:
        return [(f"jobs/{job}", name) for name in ANALYSTS for job in self.jobs[name]]

    def _poll(self, *paths: tuple[str, str]) -> None:
        for path, name in paths:
            reply = self.request(name, "GET", path)
            if reply != self.last.get((path, name)):
                self.seen.append(reply)
            self.last[path, name] = reply

    def watch(self, service: Service) -> None:
        """Take the steps of a service's writer one by one, and look whenever its teacher speaks."""
        self.gates.append(Gate(service.queue, self.look))
        inner = service.teacher._progress

        def speak(*now: Any) -> None:
            inner(*now)
            self.heard.append(now)
            self.glance()

        service.teacher._progress = speak

    def drain(self) -> None:
        self.look()
        while any(gate.step() for gate in self.gates):
            self.look()

    def prepare(self, *specs: ExtractorSpec) -> None:
        for spec in specs:
            self.put("ann", spec)
            self.drain()

    def put(self, name: str, spec: ExtractorSpec) -> None:
        self.do(name, "PUT", f"extractors/{spec.sha256()}", encode_extractor(spec))

    def ask(
        self, name: str, rows: np.ndarray, slot: int = 0, spec: ExtractorSpec | None = None
    ) -> None:
        sha256, mechanism = (spec or self.case.spec).sha256(), self.case.mechanism
        classes, seed = self.case.spec.num_classes, int(np.abs(rows).sum() * 1000)
        dimensions = 64 if self.case.spec.backbone == "mlp" else self.case.spec.input_shape[-1]
        matrix = matrix_of(mechanism, dimensions, classes, seed)
        route, arrays = "labels", {"inputs": rows}
        if matrix is not None:
            route, arrays = matrix.kind, {matrix.array: matrix.entries}
        self.do(name, "POST", f"{route}?slot={slot}&extractor={sha256}", encode(arrays))

    def add(self) -> None:
        extra = self.case.extra
        body = encode({"inputs": extra.inputs, "labels": extra.labels, "ids": extra.ids})
        assert self.made.call("carol", "records", "POST", body).is_success

    def remove(self) -> None:
        ids = json.dumps({"ids": self.case.extra.ids.tolist()}).encode()
        assert self.made.call("carol", "records/removals", "POST", ids).is_success


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
    monkeypatch.setattr(callers, "WAITING", WAITING)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / KEY).write_bytes(bytes(range(KEY_BYTES)))
    shape, scale = case.records.inputs.shape[1:], ScaleConfig(shards=case.shards)
    rows, shown = partial(ShardedRows, scale=scale, input_shape=shape, source=str), Shown()
    made = make(
        folder,
        mechanism=case.mechanism,
        records=lambda: records,
        adversary=EACH if case.each else POOLED,
        task=Task(numbered_space(case.mechanism.label_space, case.spec.num_classes), shape),
        entropy=SeededNoise(3),
        certified=None,
        sharded=partial(Teacher, streamed(records), rows=rows) if case.shards else None,
        scale=scale,
        batch_size=BATCH,
        progress=lambda *now: shown.append(now),
    )
    talk = Conversation(case, made, shown=shown)
    talk.watch(made.service)
    if (analysts := made.service.analysts) is not None:
        build = analysts.build

        def watched(custodian: Custodian) -> Service:
            talk.watch(service := build(custodian))
            return service

        analysts.build = watched
    with served(made):
        yield talk


def transcript(
    folder: Path, case: Case, world: str, monkeypatch: pytest.MonkeyPatch
) -> Conversation:
    records = case.records.joined(case.extra) if world == "leaves" else case.records
    with conversation(folder, case, records, monkeypatch) as talk:
        talk.prepare(case.embedder, case.spec)
        talk.ask("ann", case.queries[:4])
        talk.put("bob", case.spec)
        talk.drain()
        for act in WORLDS[world]:  # the last one still waits when the analysts go on
            talk.drain()
            getattr(talk, act)()
        talk.put("ann", case.spec)
        talk.ask("bob", case.queries[2:6])
        talk.drain()
        talk.prepare(case.embedder, case.embedder, case.spec)
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
        talk.prepare(case.embedder, case.spec)
    with conversation(folder, case, later, monkeypatch) as talk:
        talk.prepare(case.embedder, case.spec)
        talk.ask("ann", case.queries)
        talk.drain()
    return talk


def _mistakes(talk: Conversation) -> None:
    talk.ask("ann", talk.case.queries[:1], slot=7)
    talk.drain()
    talk.do("bob", "GET", f"jobs/{talk.jobs['ann'][0]}")
    for path in ("metrics", "analysts", "health", "nowhere", "ledger"):
        talk.do("bob", "GET", path)
    talk.do("ann", "POST", f"labels?extractor={'0' * 64}", b"")
    talk.do("ann", "POST", "records", b"")
    talk.do("ann", "PUT", f"extractors/{'0' * 64}", encode_extractor(talk.case.spec))


# What the custodian does in the middle. In every world all callers must see the same.
WORLDS = {
    "never": (),
    "leaves": ("remove", "add", "remove", "add", "remove"),
    "comes": ("add", "remove", "add", "remove", "add"),
}
