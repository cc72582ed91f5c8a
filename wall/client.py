"""The teacher over HTTP, with the methods of the Teacher in process. Every request may be repeated: a query's identity decides.

Each call of ``answer`` or ``count`` returns one receipt, which says what that call was charged, also where replies were lost on
the way. So the receipts of all calls add up to no more than the ledger charged, and to all of it unless a call failed, was given
up, or lost its reply to the end of a service.
Nothing is retried that would be charged again: where the teacher failed after a charge, the caller hears of it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np

from labelwall.wall.cells import CellCounts, Cells
from labelwall.wall.errors import InvalidInput, LedgerMismatch, Refused, TeacherFailed
from labelwall.wall.messages import Answers, ExtractorSpec, Queries, joined
from labelwall.wall.wire import (
    MAX_ROWS,
    SAFETENSORS,
    answers_of,
    counts_of,
    encode,
    encode_extractor,
)

Progress = Callable[[str, int, int], None]  # (what, done, total)
WAIT = 20.0  # seconds that the service holds a request open for its job
AGAIN = ("too_fast", "busy", "shutting_down")
SHORTEST, LONGEST = 0.05, 2.0  # seconds between attempts
MAX_BYTES = 32 << 20  # of one request's rows


def _quiet(what: str, done: int, total: int) -> None:
    """The default progress: none."""


class RemoteTeacher:
    """A teacher behind a URL.

    ``url``: https://HOST[:PORT], or http:// on this machine. ``key``: from `labelwall keys add`; it is sent nowhere else.
    ``progress`` hears whether a request is queued or running, and how many of its own queries are answered: how far the
    teacher is with private rows is told to their custodian alone.
    ``patience``: seconds without any reply of use after which a request is given up.

    Raises InvalidInput for another kind of URL; methods raise Refused, TeacherFailed or LedgerMismatch.
    """

    def __init__(
        self, url: str, key: str, *, progress: Progress = _quiet, patience: float = 120.0
    ) -> None:
        parts = urlsplit(url)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.username
            or parts.query
            or parts.fragment
        ):
            raise InvalidInput("teacher", "https://HOST[:PORT]", url)
        if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
            raise InvalidInput("teacher", "https:// for a service on another machine", url)
        timeout = httpx.Timeout(WAIT + 40, connect=10)
        headers = {"authorization": f"Bearer {key}"}
        secure = (
            parts.scheme == "https"
        )  # certificates by SSL_CERT_FILE; no proxy stands before this machine itself
        self._http = httpx.Client(
            base_url=f"{url.rstrip('/')}/v1/", headers=headers, timeout=timeout, trust_env=secure
        )
        self._progress, self._patience = progress, patience
        self._spec: ExtractorSpec | None = None

    def __repr__(self) -> str:
        return "RemoteTeacher()"

    def close(self) -> None:
        self._http.close()

    def use_extractor(self, spec: ExtractorSpec, probe: np.ndarray | None = None) -> None:
        """Later answers use this extractor. ``probe`` stays here: the service tests a network on rows of the custodian's."""
        self._spec = spec
        path = f"extractors/{spec.sha256()}"
        self._job(lambda: self._send("PUT", path, encode_extractor(spec)), "sending features")

    def answer(self, queries: Queries) -> Answers:
        """Noisy labels for public inputs; what was asked before comes from the ledger and costs nothing."""
        inputs = queries.inputs
        rows = max(1, min(MAX_ROWS, MAX_BYTES // max(1, inputs[:1].nbytes)))
        starts = range(0, max(1, len(inputs)), rows)
        return joined(
            [
                answers_of(self._ask("labels", {"inputs": inputs[s : s + rows]}, queries.slot))
                for s in starts
            ]
        )

    def count(self, cells: Cells) -> CellCounts:
        """Noisy votes of all records in public cells."""
        return counts_of(self._ask("cells", {"centers": cells.centers}, cells.slot))

    def budget(self) -> dict[str, Any]:
        """The plan, its certificate, what is spent and left, and what this key may still be charged for."""
        return self._send("GET", "budget").json()

    def receipts(self) -> list[dict[str, Any]]:
        """The calls that were charged: a custodian sees everybody's."""
        return self._send("GET", "receipts").json()

    def export(self, path: Path) -> None:
        """Write the auditors' copy of the ledger, whole or not at all."""
        content = self._send("GET", "ledger").content
        scratch = path.with_name(path.name + ".part")
        scratch.write_bytes(content)
        scratch.replace(path)

    def add(self, inputs: np.ndarray, labels: np.ndarray, ids: np.ndarray) -> None:
        """For the custodian: records that vote from the next query on. inputs [n, ...], labels and ids int64 [n]."""
        body = encode({"inputs": inputs, "labels": labels, "ids": ids})
        self._job(lambda: self._send("POST", "records", body), "adding records")

    def remove(self, ids: np.ndarray) -> None:
        """For the custodian: records (int64 [n] ids) that never vote again."""
        removal = {"ids": ids.tolist()}
        self._job(lambda: self._send("POST", "records/removals", removal), "removing records")

    def _ask(self, path: str, arrays: Mapping[str, np.ndarray], slot: int) -> dict[str, Any]:
        if self._spec is None:
            raise InvalidInput("extractor", "set by use_extractor before the first query", None)
        body = encode(arrays)
        place: dict[str, str | int] = {"slot": slot, "extractor": self._spec.sha256()}
        call = secrets.token_hex(
            16
        )  # tried again, it finds its job, and the receipt that may have been lost
        while True:
            try:
                return self._job(
                    lambda: self._send("POST", path, body, place, call), "answering queries"
                )
            except Refused as refusal:
                if refusal.code != "unknown_extractor":
                    raise
                self.use_extractor(
                    self._spec
                )  # a service that was started again does not remember it

    def _job(self, send: Callable[[], httpx.Response], what: str) -> dict[str, Any]:
        """The result of a request that may take long. A job that the service forgot is asked for again."""
        reply = send()
        while reply.status_code == 202:
            state = reply.json()
            self._progress(f"{what} ({state['status']})", state["done"], state["total"])
            try:
                reply = self._send("GET", f"jobs/{state['job']}")
            except Refused as refusal:
                if refusal.code != "unknown_job":
                    raise
                reply = send()
        state = reply.json()
        self._progress(what, state["total"], state["total"])
        return state["result"]

    def _send(
        self,
        method: str,
        path: str,
        body: object = None,
        parameters: Mapping[str, str | int] | None = None,
        call: str | None = None,
    ) -> httpx.Response:
        """A reply of 200 or 202. Lost connections, and refusals that ask for it, are tried again until patience ends.

        ``call``: names a call with a receipt (``Idempotency-Key``).
        """
        content: dict[str, Any] = {"json": body}
        if isinstance(body, bytes):
            named = {} if call is None else {"idempotency-key": call}
            content = {"content": body, "headers": {"content-type": SAFETENSORS, **named}}
        waits = {"wait": WAIT} if method != "GET" or path.startswith("jobs/") else {}
        started, pause = time.monotonic(), SHORTEST
        while True:
            try:
                arguments: dict[str, Any] = {} if body is None else content
                reply = self._http.request(
                    method, path, params={**waits, **(parameters or {})}, **arguments
                )
                refusal = _refusal(reply)
            except httpx.TransportError as error:
                refusal = Refused(
                    "unreachable",
                    f"the teacher's service can not be reached ({type(error).__name__}).",
                )
            if refusal is None:
                return reply
            again = refusal.code in AGAIN or refusal.code == "unreachable"
            if not again or time.monotonic() - started > self._patience:
                raise _error(refusal)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)


def _refusal(reply: httpx.Response) -> Refused | None:
    if reply.status_code in (200, 202):
        return None
    try:
        content = reply.json()
        return Refused(str(content["code"]), str(content["message"]))
    except (ValueError, KeyError, TypeError):
        return Refused(
            "unreachable",
            f"something else than the teacher's service answered (status {reply.status_code}).",
        )


def _error(refusal: Refused) -> Exception:
    """The error that the teacher in process would raise, where it has one."""
    if refusal.code == "teacher_failed":
        return TeacherFailed()
    return LedgerMismatch(str(refusal)) if refusal.code == "ledger_refused" else refusal
