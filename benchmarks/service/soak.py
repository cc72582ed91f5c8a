"""A service under load, attacks and accidents: nothing lost, no 500, flat memory, a clean audit.

    python benchmarks/service/soak.py                  # one hour: a file, then PostgreSQL
    python benchmarks/service/soak.py --minutes 8      # quick

Eight analysts ask new and old queries. At random moments the service is killed or told to stop,
the server of the ledger crashes, or the disk is full for some seconds (for a ledger in a file: the
process may not let a file grow). Meanwhile strangers send mutated requests, unfinished headers and
bodies that never come, and one analyst sends extractors. In the last third of each half only those
accidents happen that the service survives, so that its memory is seen over a long life. At the end
every answer that was received is asked for again: it must be the same, and free.
"""

import argparse
import os
import random
import resource
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from labelwall.benchmarks.service.request_fuzz import ask, memory, mutant, seeds, verdict
from labelwall.benchmarks.service.service import Setting, opened, serve
from labelwall.teacher.ledger.auditor.auditor import Finding, audit
from labelwall.teacher.ledger.url import LedgerUrl
from labelwall.teacher.service.keys import Keys
from labelwall.wall.client import RemoteTeacher
from labelwall.wall.errors import LabelwallError, Refused
from labelwall.wall.messages import Queries

SETTING = Setting(records=2000, shape=(32,), analysts=8, threads=1)
CAP = 10_000_000  # releases, more than are asked
PATIENCE = 240.0  # seconds: longer than any accident
BETWEEN = 15.0, 45.0  # seconds between two accidents
NEW_ROWS = 0.3  # share of requests with new rows; the answers to new rows stay in memory
SETTLED = 60.0  # seconds of a life after which memory is expected to be flat
NO_GROWTH = 6.0  # seconds of a full disk
RUSH = 200  # connections with unfinished headers

Accident = tuple[str, Callable[[], None]]  # name, and what lets it happen
Sizes = list[tuple[float, int, float]]  # (seconds, number of the life, MiB)


@dataclass
class Life:
    """The service's process, started again after each accident, and what was measured of it."""

    folder: Path
    ledger: LedgerUrl | None
    port: int
    starts: int = 0
    sizes: Sizes = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def start(self) -> None:
        os.environ["MALLOC_ARENA_MAX"] = "2"  # as the unit in docs/service.md does
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = SETTING, self.folder, theirs, self.port, self.ledger, CAP
        self.process = context.Process(target=serve, args=arguments)
        self.process.start()
        self.starts += 1
        if self._pipe.poll(300):
            with suppress(EOFError):
                self._pipe.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.start()

    def stop(self) -> None:
        with suppress(OSError):
            self._pipe.send("stop")
        self.process.join(120)
        if self.process.exitcode != 0:
            self.problems.append(f"a stop ended with {self.process.exitcode}")
            self.process.kill()
            self.process.join()

    def stop_and_start(self) -> None:
        self.stop()
        self.start()

    def fill_disk(self) -> None:
        """No file of the process may grow beyond a page for a while."""
        pid, free = self.process.pid, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        assert pid is not None
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        time.sleep(NO_GROWTH)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, free)

    def measure(self, started: float) -> None:
        with suppress(OSError, IndexError):
            assert self.process.pid is not None
            size = memory(self.process.pid)
            self.sizes.append((time.monotonic() - started, self.starts, size))


class Soak:
    """Half of a run. ``counts``: what happened; ``problems``: what must not happen."""

    def __init__(self, life: Life, url: str, tokens: dict[str, str], seed: int) -> None:
        self.life, self.url, self.tokens, self.seed = life, url, tokens, seed
        self.address = ("127.0.0.1", life.port)
        self.over = threading.Event()
        self.counts, self.problems = Counter[str](), list[str]()
        self.answered: dict[bytes, int] = {}
        self._lock = threading.Lock()

    def note(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def check(self, rows: np.ndarray, labels: np.ndarray) -> None:
        """Store answers. A second answer to a row must be the first one."""
        with self._lock:
            for row, label in zip(rows, labels.tolist(), strict=True):
                if self.answered.setdefault(row.tobytes(), label) != label:
                    self.problems.append("an answer changed")

    def analyst(self, number: int) -> None:
        rng, remote = self.rng(number), self.remote(f"analyst{number}")
        seed = 1000 * number
        while not self.over.wait(rng.uniform(0.0, 0.6)):
            seed += rng.random() < NEW_ROWS  # otherwise the same rows again
            rows = SETTING.rows(1 + seed % 16, seed + 10**6 * number)
            try:
                self.check(rows, remote.answer(Queries(rows)).labels)
                self.note("answered")
            except LabelwallError as error:  # of an accident: asked again later
                code = error.code if isinstance(error, Refused) else type(error).__name__
                self.note(f"analyst got {code}")
        remote.close()

    def rng(self, who: object) -> random.Random:
        return random.Random(f"{self.seed} {who}")

    def remote(self, name: str) -> RemoteTeacher:
        remote = RemoteTeacher(self.url, self.tokens[name], patience=PATIENCE)
        remote._spec = SETTING.spec  # sent when the service asks for it
        return remote

    def mutator(self) -> None:
        rng, known = self.rng("mutator"), seeds([self.tokens["mallory"]])
        while not self.over.is_set():
            found = verdict(ask(self.address, mutant(rng, known)))
            self.note(f"mutant got {found}")
            if found.startswith("FAILURE"):
                self.problems.append(found)
            if found == "no reply":  # the service may be away: do not spend its time
                self.over.wait(0.01)

    def slow(self) -> None:
        """Connections with unfinished headers, and requests that announce a body."""
        announced = seeds([self.tokens["mallory"]])[16]
        head = announced[: announced.index(b"content-length")] + b"content-length: 60000000\r\n\r\n"
        while not self.over.is_set():
            with ExitStack() as stack, suppress(OSError):
                for number in range(RUSH):
                    opened_one = socket.create_connection(self.address, timeout=5)
                    stack.enter_context(opened_one)
                    opened_one.sendall(head if number % 10 == 0 else b"GET /v1/health HTTP/1.1\r\n")
                self.note("rush of slow connections")
                self.over.wait(5)
            self.over.wait(1)

    def greedy(self) -> None:
        """Extractors, none of which is asked for anything."""
        remote, number = self.remote("mallory"), 0
        while not self.over.wait(2):
            number += 1
            with suppress(LabelwallError):
                remote.use_extractor(replace(SETTING.spec, scale=1 + number / 1000))
                self.note("extractor taken")
        remote.close()

    def run(self, seconds: float, fatal: list[Accident], survived: list[Accident]) -> None:
        """``fatal``: accidents that end the service's process; ``survived``: the others."""
        work = [threading.Thread(target=self.analyst, args=(n,)) for n in range(SETTING.analysts)]
        work += [threading.Thread(target=each) for each in (self.mutator, self.slow, self.greedy)]
        for thread in work:
            thread.start()
        try:
            self._let_happen(seconds, fatal, survived)
        finally:
            self.over.set()
        for thread in work:
            thread.join()

    def _let_happen(self, seconds: float, fatal: list[Accident], survived: list[Accident]) -> None:
        rng, started = self.rng("accidents"), time.monotonic()
        due = rng.uniform(*BETWEEN)
        while (now := time.monotonic() - started) < seconds:
            self.over.wait(2)
            self.life.measure(started)
            if now > due:
                late = now > 2 / 3 * seconds
                name, accident = rng.choice(survived if late else [*fatal, *survived])
                accident()
                self.note(name)
                due = time.monotonic() - started + rng.uniform(*BETWEEN)

    def ask_again(self) -> None:
        """Every answer once more, in batches: the same label at no charge."""
        remote = self.remote("analyst0")
        held = list(self.answered.items())
        for start in range(0, len(held), 256):
            part = held[start : start + 256]
            rows = np.stack([np.frombuffer(row, dtype=np.float32) for row, _ in part])
            answers = remote.answer(Queries(rows))
            self.check(rows, answers.labels)
            if any(answers.receipt.charged.values()):
                self.problems.append("an answer that was received is not in the ledger")
        remote.close()


def soak(folder: Path, seconds: float, server: object | None, seed: int) -> Sizes:
    """Run one half and print what happened. ``server``: of PostgreSQL, None for a file."""
    ledger = None if server is None else server.schema()  # type: ignore[attr-defined]
    keys = Keys(folder)
    names = [*(f"analyst{n}" for n in range(SETTING.analysts)), "mallory"]
    tokens = {name: keys.add(name, "analyst") for name in names}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    life = Life(folder, ledger, port)
    life.start()
    half = Soak(life, f"http://127.0.0.1:{port}", tokens, seed)
    fatal = [("service killed", life.kill), ("service stopped", life.stop_and_start)]
    survived = ("disk full", life.fill_disk)
    if server is not None:
        survived = ("database crashed", lambda: _crash(server))
    half.run(seconds, fatal, [survived])
    half.ask_again()
    life.stop()
    place = "a file" if server is None else "PostgreSQL"
    print(f"ledger in {place}, {seconds / 60:.1f} minutes, {life.starts} starts")
    tell(half, _audited(folder, ledger))
    return life.sizes


def tell(half: Soak, finding: Finding) -> None:
    """Print what happened, what should not have, and the memory of each life."""
    for what, count in sorted(half.counts.items()):
        print(f"  {count:9,} {what}")
    print(f"  {len(half.answered):9,} answers, each asked again at the end")
    problems = Counter(half.problems + half.life.problems)
    print(f"  problems: {dict(problems) or 'none'}; audit: {finding.problems or 'none'}")
    for number in range(1, half.life.starts + 1):
        lived = [(at, size) for at, life, size in half.life.sizes if life == number]
        settled = [(at, size) for at, size in lived if at > lived[0][0] + SETTLED]
        if len(settled) > 10:
            (begun, early), (end, late) = settled[0], settled[-1]
            print(
                f"  memory of start {number}: {early:.0f} to {late:.0f} MiB in {end - begun:.0f} s"
            )


def _crash(server: object) -> None:
    server.stop("immediate")  # type: ignore[attr-defined]
    time.sleep(2)
    server.start()  # type: ignore[attr-defined]


def _audited(folder: Path, ledger: LedgerUrl | None) -> Finding:
    custodian = opened(folder, ledger, CAP)
    custodian.ledger.export(folder / "export.sqlite")
    custodian.close()
    return audit(folder / "export.sqlite")


def draw(path: Path, halves: dict[str, Sizes]) -> None:
    """Resident memory over time, a line for each start of the service."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(halves), figsize=(5 * len(halves), 3), squeeze=False)
    for axis, (name, sizes) in zip(axes[0], halves.items(), strict=True):
        for number in sorted({life for _, life, _ in sizes}):
            own = [(at / 60, size) for at, life, size in sizes if life == number]
            axis.plot(*zip(*own, strict=True))
        axis.set(title=f"ledger in {name}", xlabel="minutes", ylabel="MiB resident", ylim=(0, None))
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="of both halves together")
    parser.add_argument("--seed", type=int, default=0, help="of requests and accidents")
    parser.add_argument("--plot", type=Path, help="PNG file of the memory over time")
    options = parser.parse_args()
    from labelwall.tests.postgres import new_server, programs

    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    halves = {}
    with ExitStack() as stack:
        servers = {"a file": None}
        if programs() is not None:
            servers["PostgreSQL"] = stack.enter_context(new_server())
        for name, server in servers.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            halves[name] = soak(folder, 60 * options.minutes / len(servers), server, options.seed)
    if options.plot:
        draw(options.plot, halves)


if __name__ == "__main__":
    main()
