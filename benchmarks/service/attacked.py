"""How long an analyst waits for a service while strangers attack it.

    python benchmarks/service/attacked.py
    python benchmarks/service/attacked.py --seconds 5 --turns 1      # quick

The service, the strangers and the analyst are a process each. Eight threads without a key, all of
one address, send bodies in chunks of one byte ("chunks") or requests whose replies nobody reads
("pipelined"). The baseline sends the same bytes to a socket that throws them away, so that the
machine is as busy. Attack and baseline take turns; each line has the 50th and 99th percentile of
the analyst's waits in milliseconds, and the ratio of the 99th.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from labelwall.benchmarks.service.service import Setting, serve
from labelwall.teacher.service.keys import Keys
from labelwall.wall.client import RemoteTeacher
from labelwall.wall.messages import Queries

SETTING = Setting(records=200, shape=(6,), analysts=1, threads=1)
STRANGERS = """
import os, socket, sys, threading
from contextlib import suppress

kind, port = sys.argv[1], int(sys.argv[2])
os.nice(19)  # what is measured is the service's work, not the strangers'
if not port:
    idle = socket.create_server(("127.0.0.1", 0))
    port = idle.getsockname()[1]
    def discard():
        while True:
            with suppress(OSError), idle.accept()[0] as opened:
                opened.recv(1 << 18)
    threading.Thread(target=discard, daemon=True).start()
head = b" /v1/openapi.json HTTP/1.1\\r\\nhost: a\\r\\n"
in_chunks = b"transfer-encoding: chunked\\r\\n\\r\\n"
first, then = {
    "chunks": (b"POST" + head + in_chunks, b"1\\r\\nx\\r\\n" * 2000),
    "pipelined": (b"", (b"GET" + head + b"\\r\\n") * 200),
}[kind]

def attack():
    while True:
        with suppress(OSError):
            place = socket.create_connection(("127.0.0.1", port), 8, ("127.0.0.2", 0))
            with place as opened:
                opened.sendall(first)
                for _ in range(50):
                    opened.sendall(then)

for _ in range(8):
    threading.Thread(target=attack).start()
"""


def waits(analyst: RemoteTeacher, kind: str, port: int, seconds: float, seed: int) -> np.ndarray:
    """Milliseconds of each answer for two new rows, while strangers attack a port (0: nothing)."""
    found, rng = list[float](), np.random.default_rng(seed)
    with subprocess.Popen([sys.executable, "-c", STRANGERS, kind, str(port)]) as strangers:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            inputs = rng.standard_normal((2, *SETTING.shape), dtype=np.float32)
            begun = time.monotonic()
            analyst.answer(Queries(inputs))
            found.append(1000 * (time.monotonic() - begun))
        strangers.kill()
    return np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack [s]")
    parser.add_argument("--turns", type=int, default=3, help="attacks of each kind [count]")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        token = Keys(folder).add("bench", "analyst")
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(SETTING, folder, theirs))
        process.start()
        url = ours.recv()
        analyst = RemoteTeacher(url, token, patience=60.0)
        analyst.use_extractor(SETTING.spec)
        port = int(url.rpartition(":")[2])
        waits(analyst, "chunks", 0, 2.0, 0)  # compiles
        for kind in ("chunks", "pipelined"):
            ratios = list[float]()
            for turn in range(1, args.turns + 1):
                of = [
                    waits(analyst, kind, to, args.seconds, 2 * turn + (to > 0)) for to in (0, port)
                ]
                (calm, calm99), (attacked, attacked99) = (
                    np.quantile(each, (0.5, 0.99)) for each in of
                )
                ratios.append(attacked99 / calm99)
                print(
                    f"{kind}: calm p50 {calm:.1f} p99 {calm99:.1f} ms, attacked p50 {attacked:.1f} "
                    f"p99 {attacked99:.1f} ms, p99 {ratios[-1]:.2f} times",
                    flush=True,
                )
            print(f"{kind}: median of {args.turns}: {np.median(ratios):.2f} times", flush=True)
        analyst.close()
        ours.send("stop")
        process.join()


if __name__ == "__main__":
    main()
