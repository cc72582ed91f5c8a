"""An external monotone anchor: a file kept away from the ledger that remembers how far the ledger had come."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from labelwall.wall.errors import LedgerMismatch


class Anchor:
    """Remembers (seq, hash) of the newest committed entry, so that a restored or forked ledger is noticed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self, hashes: list[str]) -> None:
        """Raise LedgerMismatch unless the anchored entry stands in ``hashes`` ([seq] -> hash) at its place."""
        if not self._path.exists():
            return self.advance(len(hashes) - 1, hashes[-1])
        anchored = json.loads(self._path.read_text())
        seq, digest = anchored["seq"], anchored["hash"]
        if seq >= len(hashes) or hashes[seq] != digest:
            raise LedgerMismatch(
                f"the ledger is older than, or forked from, its anchor at entry {seq}. Restore the newest copy."
            )
        return None

    def advance(self, seq: int, digest: str) -> None:
        """Durably replace the anchored entry, never by an earlier one: of two processes, the slower may come second."""
        with open(self._path.with_name(self._path.name + ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._path.exists() and json.loads(self._path.read_text())["seq"] >= seq:
                return
            scratch = self._path.with_name(self._path.name + ".part")
            with open(scratch, "w") as file:
                json.dump({"seq": seq, "hash": digest}, file)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(self._path)
