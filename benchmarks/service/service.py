"""The teacher behind HTTP beside the same teacher in process: queries per second, latency.

    python benchmarks/service/service.py
    python benchmarks/service/service.py --records 5000 --queries 1000      # quick

By default 60,000 records of 1,296 features, 8 analysts, 10,000 queries at batch 256.
The service is a separate process on this machine. Throughput is measured in rounds, in process
and over HTTP by turns: a busy machine slows both; the ratio is the median over the rounds. So is
the latency of a batch of one, with one caller and with all of them. Every query is new, none is
served from the ledger.
"""

import argparse
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from labelwall.benchmarks.shared.record import add_record, record
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.custodian import Custodian, open_custodian
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.url import LedgerUrl
from labelwall.teacher.mechanisms.votes import PrivateKnn
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.records.private_records import Records
from labelwall.teacher.service.app import create_app
from labelwall.teacher.service.keys import Keys
from labelwall.teacher.service.server import address, listen, server
from labelwall.teacher.service.service import build_service
from labelwall.teacher.service.service_config import ServiceConfig, Settings
from labelwall.teacher.teacher import Teacher
from labelwall.wall.client import RemoteTeacher
from labelwall.wall.datasets.data_config import Task
from labelwall.wall.label_kinds import ClassLabels
from labelwall.wall.messages import ExtractorSpec, Queries

CLASSES = 10
BATCH = 256
MECHANISM = PrivateKnn(k=300, threshold=30, sigma_screen=75.0, sigma_vote=25.0, sample_rate=0.15)
CAP = 50_000
REQUESTS = {1: 64, 16: 16, 256: 8}  # of each analyst, by batch: for p50 and p99
TURNS, SINGLES = 10, 8  # turns of batches of one, and requests of each caller in a turn


@dataclass(frozen=True)
class Setting:
    """``shape``: of a row. Images are uint8 [28, 28, 1] under HOG, vectors float32 [d], raw."""

    records: int
    shape: tuple[int, ...]
    analysts: int
    threads: int

    @property
    def spec(self) -> ExtractorSpec:
        return ExtractorSpec("hog" if len(self.shape) == 3 else "raw", self.shape, CLASSES)

    def rows(self, n: int, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        if len(self.shape) == 3:
            return rng.integers(0, 256, (n, *self.shape), dtype=np.uint8)
        return rng.standard_normal((n, *self.shape), dtype=np.float32)

    def private(self) -> Records:
        return Records(
            self.rows(self.records, 0), np.arange(self.records) % CLASSES, np.arange(self.records)
        )


def opened(folder: Path, ledger: LedgerUrl | None = None, cap: int = CAP) -> Custodian:
    plan = Plan(1e9, 1e-5, (Slot(MECHANISM.fields(), MECHANISM.releases(cap, cap)),))
    return open_custodian(folder, data={}, plan=plan, unsafe=False, ledger_url=ledger)


def serve(
    setting: Setting,
    folder: Path,
    pipe: Connection,
    port: int = 0,
    ledger: LedgerUrl | None = None,
    cap: int = CAP,
) -> None:
    """The service's process: says its URL, and stops when it hears anything."""
    import threading

    import torch

    torch.set_num_threads(setting.threads)
    learned = Task(ClassLabels.of(CLASSES), setting.shape)
    custodian = opened(folder, ledger, cap)
    config = ServiceConfig(port=port, requests_per_second=1e6)
    settings = Settings(config, learned, SystemEntropy(), certified=None)
    service = build_service(custodian, setting.private, settings)
    app = create_app(service, Keys(folder), log=lambda *_, **__: None)
    running = server(app, config)

    def stop() -> None:
        pipe.recv()
        running.should_exit = True

    threading.Thread(target=stop, daemon=True).start()
    with listen(config) as bound:
        pipe.send(address(config, bound))
        running.run(sockets=[bound])
    custodian.close()


class Load:
    """Analysts of one service, each with its own connection. No two calls ask the same rows."""

    def __init__(self, setting: Setting, url: str, token: str) -> None:
        self._setting, self._seed, self.asked = setting, 10, 0
        self._clients = [RemoteTeacher(url, token) for _ in range(setting.analysts)]
        for client in self._clients:
            client.use_extractor(setting.spec)

    def ask(self, queries: int, batch: int, callers: int = 0) -> tuple[float, np.ndarray]:
        """(queries per second, seconds of each request); ``callers`` (0: all analysts) share the
        ``queries``."""
        callers = callers or len(self._clients)
        each = max(1, queries // (batch * callers))
        self._seed += 1
        self.asked += each * batch * callers
        rows = self._setting.rows(each * batch * callers, self._seed).reshape(
            callers, each, batch, *self._setting.shape
        )

        def analyst(number: int) -> list[float]:
            seconds = []
            for inputs in rows[number]:
                started = time.perf_counter()
                answers = self._clients[number].answer(Queries(inputs))
                seconds.append(time.perf_counter() - started)
                assert answers.receipt.charged["screen"] == batch
            return seconds

        started = time.perf_counter()
        with ThreadPoolExecutor(callers) as pool:
            seconds = [second for found in pool.map(analyst, range(callers)) for second in found]
        return len(seconds) * batch / (time.perf_counter() - started), np.array(seconds)


def in_process(setting: Setting, folder: Path) -> Teacher:
    custodian = opened(folder)
    teacher = Teacher(
        setting.private, custodian.ledger, folder, CLASSES, SystemEntropy(), batch_size=BATCH
    )
    teacher.use_extractor(setting.spec)
    return teacher


def alone(teacher: Teacher, setting: Setting, queries: int, seed: int) -> float:
    """Queries per second of one caller in this process, at batches of 256."""
    rows = setting.rows(queries, seed)
    started = time.perf_counter()
    for start in range(0, queries, BATCH):
        teacher.answer(Queries(rows[start : start + BATCH]))
    return queries / (time.perf_counter() - started)


def singles(teacher: Teacher, setting: Setting, callers: int, seed: int) -> np.ndarray:
    """Seconds of each batch of one, of ``callers`` threads in this process."""
    rows = setting.rows(callers * SINGLES, seed).reshape(callers, SINGLES, 1, *setting.shape)

    def caller(number: int) -> list[float]:
        seconds = []
        for inputs in rows[number]:
            started = time.perf_counter()
            teacher.answer(Queries(inputs))
            seconds.append(time.perf_counter() - started)
        return seconds

    with ThreadPoolExecutor(callers) as pool:
        return np.array([second for found in pool.map(caller, range(callers)) for second in found])


def cpu_seconds(process: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def compare_singles(teacher: Teacher, load: Load, setting: Setting, process: int) -> None:
    """Print latency and processor time of a batch of one, in process and over HTTP by turns.

    ``process``: the service's.
    """
    for callers in sorted({1, setting.analysts}):
        here, there, spent = [], [], np.zeros(2)
        for turn in range(TURNS):
            before = time.process_time(), cpu_seconds(process)
            here.append(singles(teacher, setting, callers, 10**7 + 100 * callers + turn))
            spent[0] += time.process_time() - before[0]
            there.append(load.ask(callers * SINGLES, 1, callers)[1])
            spent[1] += cpu_seconds(process) - before[1]
        (p50, p99), (http50, http99) = (
            1000 * np.quantile(np.concatenate(found), (0.5, 0.99)) for found in (here, there)
        )
        local, http = 1000 * spent / (TURNS * SINGLES * callers)
        print(
            f"  batch of one, {callers} callers: in process p50 {p50:.1f} ms p99 {p99:.1f} ms, "
            f"over HTTP p50 {http50:.1f} ms p99 {http99:.1f} ms; p50 {http50 - p50:+.1f} ms; "
            f"processor time {local:.1f} and (the service's) {http:.1f} ms"
        )


def measure(setting: Setting, queries: int, rounds: int) -> tuple[list, list[list]]:
    """Print a table for one kind of rows. (Throughput; batch, p50 and p99 of each batch size.)"""
    with tempfile.TemporaryDirectory() as folder:
        here, there = Path(folder) / "here", Path(folder) / "there"
        token = Keys(there).add("bench", "analyst")
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(setting, there, theirs))
        process.start()
        load, teacher = Load(setting, ours.recv(), token), in_process(setting, here)
        alone(teacher, setting, BATCH, 1)
        load.ask(BATCH * setting.analysts, BATCH)  # both are warm now
        kind = "images, HOG" if len(setting.shape) == 3 else f"vectors of {setting.shape[0]:,}"
        print(
            f"{setting.records:,} records, {kind}; "
            f"{setting.analysts} analysts, {setting.threads} threads"
        )
        assert process.pid is not None
        compare_singles(teacher, load, setting, process.pid)
        pairs = []
        for number in range(rounds):
            pairs.append(
                (
                    alone(teacher, setting, queries // rounds, 10**6 + number),
                    load.ask(queries // rounds, BATCH)[0],
                )
            )
        ratio = float(np.median([http / local for local, http in pairs]))
        local, http = (float(np.median([pair[side] for pair in pairs])) for side in (0, 1))
        print(
            f"  in process {local:8.1f} queries/s   over HTTP {http:8.1f} queries/s   "
            f"ratio {ratio:.2f}, batch {BATCH}"
        )
        waits = []
        for batch, requests in REQUESTS.items():
            speed, seconds = load.ask(requests * setting.analysts * batch, batch)
            p50, p99 = (1000 * float(np.quantile(seconds, q)) for q in (0.5, 0.99))
            print(
                f"  batch {batch:4}: p50 {p50:8.1f} ms   p99 {p99:8.1f} ms   "
                f"{speed:8.1f} queries/s   {len(seconds)} requests"
            )
            waits.append([batch, round(p50), round(p99)])
        ours.send("stop")
        process.join()
        finding = audit(there / "ledger.sqlite")
        charged = ", ".join(
            f"{count:,} of at most {CAP:,} {name}" for name, count in finding.charged.items()
        )
        print(
            f"  audit: {finding.problems or 'no problem'}; no request failed; "
            f"{load.asked:,} new queries, charged {charged}"
        )
    return [kind.partition(" ")[0].strip(","), round(http), round(ratio, 2)], waits


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=60000, help="private records, a count")
    parser.add_argument(
        "--dimensions", type=int, default=1296, help="features of a vector, a count"
    )
    parser.add_argument(
        "--queries", type=int, default=10000, help="queries of the throughput, a count"
    )
    parser.add_argument("--analysts", type=int, default=8, help="callers at once, a count")
    parser.add_argument("--rounds", type=int, default=5, help="turns of the throughput, a count")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of torch, a count")
    parser.add_argument(
        "--images",
        type=int,
        default=2000,
        help="private images of the second table, a count; 0: no such table",
    )
    add_record(parser)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    vectors = Setting(options.records, (options.dimensions,), options.analysts, options.threads)
    throughput, waits = measure(vectors, options.queries, options.rounds)
    throughputs = [throughput]
    if options.images:
        images = Setting(options.images, (28, 28, 1), options.analysts, options.threads)
        throughputs.append(measure(images, max(BATCH, options.queries // 10), 1)[0])
    if options.record:
        record("service_latency", ("batch", "p50", "p99"), waits, keys=1, seeds="fresh noise")
        columns = ("rows", "queries a second", "share of those in process")
        record("service_throughput", columns, throughputs, keys=1, seeds="fresh noise")


if __name__ == "__main__":
    main()
