"""Services over shards in processes of their own, and the processes that work for them."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from labelwall.experiment.config.config import Config
from labelwall.experiment.config.settings import load_config
from labelwall.teacher.custody.opening import custody
from labelwall.teacher.custody.serving import app_of
from labelwall.teacher.noise.entropy import Entropy
from labelwall.teacher.service.keys import Keys
from labelwall.teacher.service.service_config import ServiceConfig
from labelwall.wall.client import RemoteTeacher
from labelwall.wall.messages import ExtractorSpec, Queries
from tests.experiment import tiny
from tests.programs import PROGRAMS, environment
from tests.seeded_noise import SeededNoise
from tests.teacher.service.tiny import Made, served

PROGRAM = PROGRAMS / "tape_serve.py"
SPEC = ExtractorSpec("raw", (tiny.DIMENSIONS,), tiny.CLASSES)
LONG = 300.0  # seconds after which a test gives up
LOCAL = ServiceConfig(port=0)


def token(store: Path) -> str:
    """A new analyst's key of a custodian's directory, which may not be there yet."""
    store.mkdir(exist_ok=True)
    return Keys(store).add("ann", "analyst")


@contextmanager
def serving(
    folder: Path, store: Path, *scale: str, **variables: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """(process, URL) of a service on the tape over ``folder``'s config.yaml. SIGTERM at the end."""
    command = [
        sys.executable,
        str(PROGRAM),
        "config.yaml",
        "0",
        "--custodian_dir",
        str(store),
        *scale,
    ]
    with (store / "said").open("w") as said:
        started = environment(**variables)
        process = subprocess.Popen(
            command, cwd=folder, env=started, stdout=subprocess.PIPE, stderr=said, text=True
        )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, (store / "said").read_text()
        yield process, url
    finally:
        process.terminate()
        process.wait(LONG)
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def in_a_thread(
    config: Config, store: Path, entropy: Entropy, service: ServiceConfig = LOCAL
) -> Iterator[str]:
    """The URL of a service of the configuration's private rows in a thread of this process."""
    side = replace(config.private_side(), custodian_dir=str(store))
    opened = custody(side, unsafe=entropy.unsafe)
    app = app_of(side, service, opened, Keys(store), entropy)
    with served(Made(app, opened, {})) as url:
        yield url


def in_one_piece(folder: Path, store: Path) -> AbstractContextManager[str]:
    """The service of ``serving`` in a thread of this process, its rows in one piece."""
    return in_a_thread(placed_config(folder), store, SeededNoise(1))


def placed_config(folder: Path) -> Config:
    """The folder's configuration, for any current directory."""
    config = load_config(folder / "config.yaml")
    return replace(config, data=replace(config.data, path=str(folder / "data.npz")))


def asked(url: str, key: str, seeds: range) -> list[tuple[Any, ...]]:
    """(labels, outcomes, charged, left, the ledger's position) of a batch for each seed: what does
    not name the ledger, whose data set is a new random number each time."""
    with closing(RemoteTeacher(url, key, patience=LONG)) as teacher:
        teacher.use_extractor(SPEC)
        found = [teacher.answer(Queries(tiny.rows(4, 100 + seed)[0])) for seed in seeds]
    pairs = [(answers, answers.receipt) for answers in found]
    return [
        (a.labels.tolist(), a.outcomes.tolist(), r.charged, r.left, r.ledger_position)
        for a, r in pairs
    ]


def below(pid: int) -> dict[int, str]:
    """All processes that descend from one, by number: their command lines."""
    parents, lines = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            parents[int(entry.name)], lines[int(entry.name)] = parent, line
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {child: lines[child] for child in found - {pid}}


def workers(pid: int) -> list[int]:
    return sorted(child for child, line in below(pid).items() if line.startswith("ray::Shard"))


def gone(pids: set[int]) -> bool:
    return not any(
        Path(f"/proc/{pid}").exists()
        and b"State:\tZ" not in Path(f"/proc/{pid}/status").read_bytes()
        for pid in pids
    )


def rows_of(store: Path) -> dict[str, float]:
    """When each file of the shards' raw rows was written."""
    return {str(path): path.stat().st_mtime for path in store.glob("shards-*/*/rows/*")}
