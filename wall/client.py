"""The teacher over HTTP, with the methods of the in-process Teacher. Every request may be repeated.

Queries are recognised by their identities. Each call of ``answer`` or ``count`` returns one receipt
of what that call was charged, also where replies were lost. So the receipts of all calls sum to at
most what the ledger charged, and to exactly that unless a call failed, was given up, or lost its
reply because a service stopped. Nothing that would be charged again is retried: if the teacher
failed after a charge, the caller gets the error.
"""

import re
import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import numpy as np

from .errors import InvalidInput, LedgerMismatch, Refused, TeacherFailed
from .files import write_file
from .matrices import Matrix, NoisyCounts
from .messages import Answers, ExtractorSpec, Queries, join_answers
from .progress import Progress, no_progress
from .wire import (
    MALFORMED,
    MAX_ROWS,
    SAFETENSORS,
    decode_answers,
    decode_counts,
    encode,
    encode_extractor,
)

WAIT = 20.0  # seconds that the service keeps a request open for its job
RETRIED = ("too_fast", "busy", "shutting_down", "unreachable")  # codes of refusals
MIN_PAUSE, MAX_PAUSE = 0.05, 2.0  # seconds between attempts
MAX_BYTES = 32 << 20  # of one request's rows
CURES = {
    "unauthorized": " Ask its custodian for a key (`labelwall keys add`), and set LABELWALL_KEY.",
    "unreachable": " Check the address and port, and with its custodian that the service runs; "
    "the same command continues.",
}
T = TypeVar("T")


class RemoteTeacher:
    """A teacher behind a URL: https://HOST[:PORT], or http:// on this machine.

    ``key``: from `labelwall keys add`; it is sent nowhere else. ``progress``: hears whether a
    request is queued or running, and how many of its own queries are answered. ``patience``:
    seconds without a useful reply after which a request is given up; ``say`` hears once of it.

    Raises InvalidInput for any other URL. Methods raise Refused (`no_service` for a reply that is
    not of the service's form), TeacherFailed or LedgerMismatch.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        progress: Progress = no_progress,
        say: Callable[[str], object] = no_progress,
        patience: float = 120.0,
    ) -> None:
        parts = urlsplit(url)
        extra = parts.username or parts.query or parts.fragment
        if parts.scheme not in ("http", "https") or not parts.hostname or extra:
            raise InvalidInput("teacher", "https://HOST[:PORT]", url)
        if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
            raise InvalidInput("teacher", "https:// for a service on another machine", url)
        if not re.fullmatch("[!-~]+", key):
            raise InvalidInput(
                "LABELWALL_KEY", "a key as `labelwall keys add` printed it", "others"
            )
        self._http = httpx.Client(
            base_url=f"{url.rstrip('/')}/v1/",
            headers={"authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(WAIT + 40, connect=10),
            # The service closes a connection after five idle seconds. A request that is sent at
            # that moment would be reset.
            limits=httpx.Limits(keepalive_expiry=2.0),
            # https takes certificates from SSL_CERT_FILE; http on this machine uses no proxy.
            trust_env=parts.scheme == "https",
        )
        self._url, self._progress, self._say, self._patience = url, progress, say, patience
        self._spec: ExtractorSpec | None = None

    def close(self) -> None:
        self._http.close()

    def use_extractor(self, spec: ExtractorSpec) -> None:
        self._spec = spec
        path = f"extractors/{spec.sha256()}"
        self._job(lambda: self._send("PUT", path, encode_extractor(spec)), "sending features", dict)

    def answer(self, queries: Queries) -> Answers:
        """Noisy labels for public inputs. Repeated queries are served from the ledger for free."""
        inputs = queries.inputs
        rows = max(1, min(MAX_ROWS, MAX_BYTES // max(1, inputs[:1].nbytes)))
        starts = range(0, max(1, len(inputs)), rows)
        parts = [inputs[start : start + rows] for start in starts]
        answers = [
            self._ask(
                "labels", {"inputs": part}, queries.slot, partial(decode_answers, rows=len(part))
            )
            for part in parts
        ]
        return self._read(lambda: answers, join_answers)

    def count(self, matrix: Matrix) -> NoisyCounts:
        arrays = {matrix.array: matrix.entries}
        form = partial(decode_counts, matrix=matrix)
        return self._ask(matrix.kind, arrays, matrix.slot, form)

    def budget(self, form: Callable[[Any], T] = dict) -> T:  # type: ignore[assignment]
        """The plan, its certificate, what is spent and left, and this key's own cap and charges.

        ``form``: reads it; raises one of MALFORMED or InvalidInput for another one.
        """
        return self._read(self._send("GET", "budget").json, form)

    def export(self, path: Path) -> None:
        """Write the auditors' copy of the ledger to ``path``, complete or not at all."""
        write_file(path, self._send("GET", "ledger").content)

    def _ask(
        self, path: str, arrays: Mapping[str, np.ndarray], slot: int, form: Callable[[Any, int], T]
    ) -> T:
        if self._spec is None:
            raise InvalidInput("extractor", "set by use_extractor before the first query", None)
        body, classes = encode(arrays), self._spec.num_classes
        parameters: dict[str, str | int] = {"slot": slot, "extractor": self._spec.sha256()}
        # All attempts share one idempotency key, so a retry finds its job and a lost receipt.
        call = secrets.token_hex(16)
        while True:
            try:
                return self._job(
                    lambda: self._send("POST", path, body, parameters, call),
                    "answering queries",
                    lambda value: form(value, classes),
                )
            except Refused as refusal:
                if refusal.code != "unknown_extractor":
                    raise
                self.use_extractor(self._spec)  # the service was restarted and has forgotten it

    def _job(self, send: Callable[[], httpx.Response], what: str, form: Callable[[Any], T]) -> T:
        """The result of a long request. A job that the service has forgotten is sent again."""
        reply = send()
        while (state := self._read(reply.json, _state)) and reply.status_code == 202:
            self._progress(f"{what} ({state['status']})", state["done"], state["total"])
            try:
                reply = self._send("GET", f"jobs/{state['job']}")
            except Refused as refusal:
                if refusal.code != "unknown_job":
                    raise
                reply = send()
        self._progress(what, state["total"], state["total"])
        return self._read(lambda: state["result"], form)

    def _read(self, content: Callable[[], Any], form: Callable[[Any], T]) -> T:
        """What the service said, in its ``form``. Raises Refused if it is not."""
        try:
            return form(content())
        except (*MALFORMED, InvalidInput) as error:
            text = f"{self._url}: something else than the teacher's service answered."
            raise Refused("no_service", text + CURES["unreachable"]) from error

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        parameters: Mapping[str, str | int] | None = None,
        call: str | None = None,
    ) -> httpx.Response:
        """A reply of status 200 or 202, tried for again until patience ends.

        ``call``: the ``Idempotency-Key`` of a call with a receipt.
        """
        headers = {} if body is None else {"content-type": SAFETENSORS}
        headers |= {} if call is None else {"idempotency-key": call}
        waits = {"wait": WAIT} if method != "GET" or path.startswith("jobs/") else {}
        params = {**waits, **(parameters or {})}
        started, pause, silent = time.monotonic(), MIN_PAUSE, True
        while True:
            try:
                reply = self._http.request(
                    method, path, params=params, content=body, headers=headers
                )
                if reply.status_code in (200, 202):
                    return reply
                refusal = _refusal(reply)
            except httpx.RequestError as error:
                text = (
                    f"the teacher's service can not be reached ({type(error).__name__}: {error})."
                )
                refusal = Refused("unreachable", text)
            text = f"{self._url}: {refusal}{CURES.get(refusal.code, '')}"
            if refusal.code not in RETRIED or time.monotonic() - started > self._patience:
                # the error that the in-process teacher would raise, if there is one
                raise {
                    "teacher_failed": TeacherFailed(),
                    "ledger_refused": LedgerMismatch(text),
                }.get(refusal.code, Refused(refusal.code, text))
            if silent and pause == MAX_PAUSE:
                self._say(f"{text} Trying again for {self._patience:.0f} seconds.")
                silent = False
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)


def _refusal(reply: httpx.Response) -> Refused:
    try:
        content = reply.json()
        return Refused(str(content["code"]), str(content["message"]))
    except MALFORMED:
        text = f"something else than the teacher's service answered (status {reply.status_code})."
        return Refused("unreachable", text)


def _state(reply: Any) -> dict[str, Any]:
    """The state of a job. Raises one of MALFORMED for anything else."""
    if not re.fullmatch("[0-9a-f]{64}", reply["job"]) or not isinstance(reply["status"], str):
        raise ValueError("another job")
    return {**reply, "done": int(reply["done"]), "total": int(reply["total"])}
