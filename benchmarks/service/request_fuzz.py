"""Mutated requests to a service: no status of 500, none of 503 but by design, flat memory.

    python benchmarks/service/request_fuzz.py                       # 100,000 requests
    python benchmarks/service/request_fuzz.py --requests 5000       # quick

Requests of every route are cut, doubled, spliced and changed byte by byte, and sent over a plain
socket, some with a valid key. The service is a process of its own over 2,000 records.
"""

import argparse
import random
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path

from labelwall.benchmarks.service.service import Setting, serve
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.service.keys import Keys
from labelwall.wall.wire import SAFETENSORS, encode, encode_extractor

DESIGNED = (b"busy", b"shutting_down", b"ledger_refused")  # codes that a 503 may have
INTERESTING = (b"\0", b"\r\n", b"\xff", b"%00", b"-1", b"999999999999", b"{", b"\r\n\r\n", b"NaN")
WAIT = 5.0  # seconds for the first bytes of a reply
SETTING = Setting(records=2000, shape=(32,), analysts=1, threads=1)


def seeds(tokens: list[str]) -> list[bytes]:
    """Well-formed requests of every route, by an analyst, a custodian and a stranger."""
    extractor = SETTING.spec.sha256()
    rows = encode({"inputs": SETTING.rows(3, 5)})
    made: list[tuple[str, str, bytes]] = [
        ("GET", path, b"")
        for path in ("health", "budget", "receipts?newest=3", "ledger", "metrics", "analysts")
    ]
    made += [
        ("GET", f"jobs/{'0' * 64}", b""),
        ("PUT", f"extractors/{extractor}?wait=1", encode_extractor(SETTING.spec)),
        ("POST", f"labels?extractor={extractor}&wait=1", rows),
        ("POST", f"cells?extractor={extractor}&slot=0", rows),
        ("POST", "records", rows),
        ("POST", "records/removals", b'{"ids": [1, 2]}'),
    ]
    requests = []
    for method, path, body in made:
        for token in (*tokens, "lw_0_0"):
            head = (
                f"{method} /v1/{path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\n"
                f"content-type: {SAFETENSORS}\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            requests.append(head.encode() + body)
    return requests


def mutant(rng: random.Random, known: list[bytes]) -> bytes:
    """One to four changes of a well-formed request."""
    text = bytearray(rng.choice(known))
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(text) + 1)
        end = min(len(text), place + rng.randint(1, 16))
        change = rng.randrange(6)
        if change == 0 and place < len(text):
            text[place] ^= 1 << rng.randrange(8)
        elif change == 1:
            del text[place:end]
        elif change == 2:
            text[place:place] = rng.choice(INTERESTING)
        elif change == 3:
            text[place:place] = text[place:end] * rng.randint(1, 50)
        elif change == 4:
            other = rng.choice(known)
            start = rng.randrange(len(other))
            text[place:end] = other[start : start + rng.randint(1, 200)]
        elif change == 5:
            text[place:end] = rng.randbytes(end - place)
    return bytes(text)


def ask(address: tuple[str, int], request: bytes) -> bytes:
    """The first bytes of the reply, empty where there is none."""
    reply = b""
    with suppress(OSError), socket.create_connection(address, timeout=WAIT) as opened:
        opened.sendall(request)
        opened.shutdown(socket.SHUT_WR)
        reply = opened.recv(1 << 12)
        while reply and b"\r\n\r\n" in reply and len(reply) < 1 << 12:
            more = opened.recv(1 << 12)
            if not more:
                break
            reply += more
    return reply


def verdict(reply: bytes) -> str:
    """The status of a reply; a failure that is not by design is called one."""
    if not reply:
        return "no reply"
    status = reply[9:12].decode("ascii", "replace")
    designed = status == "503" and any(code in reply for code in DESIGNED)
    return f"FAILURE {status}" if status.startswith("5") and not designed else status


def memory(process: int) -> float:
    """Resident memory of a process, MiB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@contextmanager
def service(folder: Path, port: int = 0) -> Iterator[tuple[str, int]]:
    """(URL, process number) of a service over ``folder``; told to stop at the end."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(SETTING, folder, theirs, port))
    process.start()
    try:
        assert process.pid is not None
        yield ours.recv(), process.pid
    finally:
        with suppress(OSError):
            ours.send("stop")
        process.join(60)
        process.kill()


def fuzz(folder: Path, requests: int, seed: int, callers: int) -> Counter[str]:
    """How often each verdict was found."""
    tokens = [Keys(folder).add("ann", "analyst"), Keys(folder).add("carol", "custodian")]
    known, counts, sizes = seeds(tokens), Counter[str](), list[float]()
    with service(folder) as (url, process):
        host, port = url.rpartition("/")[2].split(":")
        ask((host, int(port)), known[21])  # an analyst's extractor

        def some(number: int) -> Counter[str]:
            rng = random.Random(f"{seed} {number}")
            found = Counter[str]()
            for _ in range(100):
                request = mutant(rng, known)
                said = verdict(ask((host, int(port)), request))
                found[said] += 1
                if said.startswith("FAILURE"):
                    print(said, request[:500])
            return found

        started = time.monotonic()
        with ThreadPoolExecutor(callers) as pool:
            for found in pool.map(some, range(requests // 100)):
                counts += found
                sizes.append(memory(process))
        seconds = time.monotonic() - started
    tenth = max(1, len(sizes) // 10)
    early, late = (sum(part) / len(part) for part in (sizes[tenth : 2 * tenth + 1], sizes[-tenth:]))
    print(f"{counts.total():,} requests in {seconds:.0f} s: {dict(counts.most_common())}")
    print(f"memory: {early:.0f} MiB after a tenth, {late:.0f} MiB at the end")
    print(f"audit: {audit(folder / 'ledger.sqlite').problems or 'no problem'}")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=100_000, help="to send, a count")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations")
    parser.add_argument("--callers", type=int, default=8, help="at once, a count")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fuzz(Path(folder), options.requests, options.seed, options.callers)


if __name__ == "__main__":
    main()
