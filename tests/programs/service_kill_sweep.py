"""SIGKILL a service under load at random times and restart it; print the result as one JSON object:
python -m tests.programs.service_kill_sweep FOLDER KILLS [SOCKET [SEED]]

One process without threads owns the listening socket and forks analysts, and the service many
times. A connection waits in the socket until the next service accepts it; an accepted one dies with
its service and is retried."""

import json
import os
import random
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socket import socket

import torch

from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.ledger.url import Place
from labelwall.teacher.service.server import listen, server
from labelwall.teacher.service.service_config import ServiceConfig
from labelwall.wall.client import RemoteTeacher
from labelwall.wall.messages import Queries
from tests.make import rows
from tests.postgres import audited, swept
from tests.programs.kill_runner import Witness, started
from tests.teacher.service import tiny

ANALYSTS, BATCH = 4, 5
CAP = 10**4


def serve(folder: Path, bound: socket, place: Place) -> None:
    entropy = Witness(folder / "notes")
    made = tiny.make(folder, asked=CAP, answered=CAP, place=place, entropy=entropy, batch_size=8)
    server(made.app, ServiceConfig()).run(sockets=[bound])


def analyse(folder: Path, url: str, tokens: list[str]) -> None:
    """Ask batches, a third of them repeated, until the folder has `stop`. Write all answers."""

    def analyst(number: int) -> None:
        teacher = RemoteTeacher(url, tokens[number % len(tokens)], patience=120.0)
        chance = random.Random(number)
        known = 0
        teacher.use_extractor(tiny.SPEC)
        with (folder / f"told-{number}").open("w") as told:
            while not (folder / "stop").exists():
                seed = chance.randrange(known) if known and chance.random() < 1 / 3 else known
                known = max(known, seed + 1)
                # all analysts ask the same rows
                labels = teacher.answer(Queries(rows(BATCH, 1000 + seed))).labels.tolist()
                told.write(json.dumps([seed, labels]) + "\n")

    with ThreadPoolExecutor(ANALYSTS) as pool:
        list(pool.map(analyst, range(ANALYSTS)))  # raises what one of them met


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def examine(folder: Path, place: Place) -> dict[str, object]:
    """Compare what was answered, drawn and charged."""
    state = Ledger(place).state
    told = [json.loads(line) for file in folder.glob("told-*") for line in file.open()]
    drawn = {"screen": 0, "aggregate": 0}
    for line in (folder / "notes").read_text().splitlines():
        drawn[line.split()[0]] += int(line.split()[1])
    spent = {name: state.spent.get((0, name), 0) for name in drawn}
    released = {name: sum(name in results for results in state.results.values()) for name in drawn}
    wrong, named = 0, (tiny.SPEC.sha256(), tiny.MECHANISM.fields())
    for seed, labels in told:
        identities = Queries(rows(BATCH, 1000 + seed)).identities(*named)
        wrong += [tiny.MECHANISM.outcome(state.results[i])[1] for i in identities] != labels
    return {
        "told": len(told),
        "wrong": wrong,  # answers that are not the one stored answer of their query
        "paid": all(spent[name] >= drawn[name] >= released[name] for name in drawn),
        # charges whose answers died with a service
        "lost": sum(spent.values()) - sum(released.values()),
        "problems": audited(place, folder).problems,
    }


def main(folder: Path, kills: int, server: str = "", seed: str = "0") -> None:
    torch.set_num_threads(1)
    place, notes = swept(folder, server), folder / "notes"
    made = tiny.make(folder, asked=CAP, answered=CAP, place=place)
    tokens = [made.tokens["ann"], made.tokens["bob"]]
    made.custodian.close()
    chance, config = random.Random(int(seed)), ServiceConfig(port=0)
    with listen(config) as bound:
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        analysts = started(lambda: analyse(folder, url, tokens))
        for _ in range(kills):
            service = started(lambda: serve(folder, bound, place))
            target = _size(notes) + chance.randrange(1, 200)
            while _size(notes) < target:  # up to some twenty draws
                time.sleep(0.002)
                assert os.waitpid(service, os.WNOHANG) == (0, 0)
            time.sleep(chance.uniform(0, 0.02))
            os.kill(service, signal.SIGKILL)
            os.waitpid(service, 0)
        service = started(lambda: serve(folder, bound, place))
        (folder / "stop").touch()
        failed = os.waitstatus_to_exitcode(os.waitpid(analysts, 0)[1])
        os.kill(service, signal.SIGTERM)
        os.waitpid(service, 0)
    print(json.dumps({"point": kills, "failed": failed, **examine(folder, place)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
