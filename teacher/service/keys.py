"""API keys of analysts and custodians. A key is shown once; only a hash of it is stored.

A key is 256 random bits, so one SHA-256 of it is as hard to invert as the key is to guess; slow
hashes are for passwords. Secrets are compared in constant time, also if the public half is unknown.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import math
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from ...wall.adversary import NAME
from ...wall.errors import InvalidInput, LedgerMismatch
from ..private_files import open_lock, require_private

KEYS, FORMAT = "keys.json", 1
Role = Literal["analyst", "custodian"]
TOKEN = re.compile(r"lw_([0-9a-f]{16})_([0-9a-f]{64})")


class KeysDamaged(LedgerMismatch):
    """The file of keys can not be read, or not be written when it has to be."""


@dataclass(frozen=True)
class Key:
    """The holder of a key and what it allows.

    ``name``: the caller's, shown in the custodian's tables.
    ``digest``: SHA-256 (hex) of the secret.
    ``queries``: cap on new queries charged under this name, None for no cap below the plan's.
    ``expires``: seconds since 1970 (UTC), None for never.
    ``expired``: a process has seen ``expires`` pass. This stays true if the clock is set back.
    """

    name: str
    role: Role
    digest: str
    queries: int | None = None
    expires: float | None = None
    revoked: bool = False
    expired: bool = False

    def __post_init__(self) -> None:
        valid = (
            isinstance(self.name, str)
            and isinstance(self.digest, str)
            and re.fullmatch("[0-9a-f]{64}", self.digest)
            and (self.queries is None or type(self.queries) is int)
            and (
                self.expires is None
                or (type(self.expires) in (int, float) and math.isfinite(self.expires))
            )
            and type(self.revoked) is bool
            and type(self.expired) is bool
            and self.role in get_args(Role)
        )
        if not valid:
            raise ValueError("a field of a key has another type")

    def is_expired(self, now: float) -> bool:
        """Whether the key expired by ``now`` (seconds since 1970), or was seen expired before."""
        return self.expired or (self.expires is not None and now >= self.expires)

    def is_valid(self, now: float) -> bool:
        return not self.revoked and not self.is_expired(now)


class Keys:
    """The keys of one custodian's directory, in a file of mode 0600.

    Changes by other processes are seen at once. Every access first stores durably which keys have
    expired, before any caller is accepted. So a key once seen expired is valid in no process again,
    whatever its clock says.

    ``in_memory``: further keys by public half, which are never stored.

    Methods raise KeysDamaged where the file cannot be read, or not be written when it has to be.
    """

    def __init__(self, directory: Path, in_memory: dict[str, Key] | None = None) -> None:
        self._path, self._in_memory = directory / KEYS, in_memory or {}
        self._read_version: tuple[int, int] | None = None  # (mtime, inode) of the file last read
        self._keys: dict[str, Key] = {}
        self._expired: set[str] = set()  # public halves of keys that this process saw expire

    def add(
        self, name: str, role: str, queries: int | None = None, expires: str | None = None
    ) -> str:
        """Add a key for ``name`` and return its token, which is not stored.

        ``expires``: an ISO date or time, in UTC unless it names a zone. Raises InvalidInput for a
        name that has a valid key, or settings out of range.
        """
        if not re.fullmatch(NAME, name):
            rule = "1 to 64 letters, digits, dots, dashes, @ or underscores"
            raise InvalidInput("name", rule, name)
        if role not in get_args(Role):
            raise InvalidInput("role", f"one of {', '.join(get_args(Role))}", role)
        if queries is not None and queries < 1:
            raise InvalidInput("queries", "at least 1", queries)
        identity, secret = secrets.token_hex(8), secrets.token_hex(32)
        ends = _timestamp(expires)
        key = Key(name, role, digest_of(secret), queries, ends)  # type: ignore[arg-type]
        with self._changing() as keys:
            if any(other.name == name and other.is_valid(time.time()) for other in keys.values()):
                rule = "of nobody who holds a valid key"
                raise InvalidInput("name", rule, name, "Revoke that key first.")
            keys[identity] = key
        return token_of(identity, secret)

    def revoke(self, name: str) -> None:
        """Revoke all keys of a name. Raises InvalidInput where there are none."""
        with self._changing() as keys:
            found = {
                identity: replace(key, revoked=True)
                for identity, key in keys.items()
                if key.name == name
            }
            if not found:
                raise InvalidInput("name", "of somebody who has a key", name)
            keys.update(found)

    def listed(self) -> dict[str, Key]:
        """All keys by their public half."""
        stored = self._stored()
        self._note_expired({**stored, **self._in_memory})
        if any(identity in self._expired and not key.expired for identity, key in stored.items()):
            with self._changing():  # which stores what has expired
                pass
            stored = self._stored()
        return {**stored, **self._marked(self._in_memory)}

    def authenticate(self, token: str) -> Key | None:
        """The valid key of a token; None for any other text, after the same comparison."""
        parts = TOKEN.fullmatch(token)
        identity, secret = parts.groups() if parts else ("", "")
        key = self.listed().get(identity)
        same = hmac.compare_digest(digest_of(secret), key.digest if key else "0" * 64)
        return key if key is not None and same and key.is_valid(time.time()) else None

    def _stored(self) -> dict[str, Key]:
        """The keys in the file, none if it does not exist."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return {}
        version = status.st_mtime_ns, status.st_ino
        if self._read_version != version:  # each change is a new file
            self._keys = _read(self._path)
            self._read_version = version
        return self._keys

    def _note_expired(self, keys: dict[str, Key]) -> None:
        """Remember which of ``keys`` have expired by now."""
        now = time.time()
        self._expired |= {identity for identity, key in keys.items() if key.is_expired(now)}

    def _marked(self, keys: dict[str, Key]) -> dict[str, Key]:
        """The keys with ``expired`` as this process knows it."""
        return {i: replace(key, expired=i in self._expired) for i, key in keys.items()}

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Key]]:
        """The keys in the file, to be changed. They are written durably if the block succeeds."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            require_private(self._path.parent)
            with open_lock(self._path.with_suffix(".lock")) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                keys = _read(self._path) if self._path.exists() else {}
                yield keys
                self._note_expired(keys)
                _write(self._path, self._marked(keys))
        except OSError as error:
            raise KeysDamaged(
                f"the custodian's {self._path.name} can not be written ({error.strerror}), "
                "and nobody gets in while an expired key is not noted in it."
            ) from error


def token_of(identity: str, secret: str) -> str:
    """The token that a caller sends: the public half (16 hex digits) and the secret (64)."""
    return f"lw_{identity}_{secret}"


def digest_of(secret: str) -> str:
    """SHA-256 (hex) of a key's secret half."""
    return hashlib.sha256(secret.encode()).hexdigest()


def render(keys: dict[str, Key]) -> str:
    """The keys as text, one a line, without secrets. For the custodian."""
    now = time.time()
    lines = [f"{'name':24} {'role':10} {'queries':>9}  valid until"]
    for key in keys.values():
        until = (
            "never ends"
            if key.expires is None
            else datetime.fromtimestamp(key.expires, UTC).isoformat(timespec="minutes")
        )
        state = "revoked" if key.revoked else f"expired {until}" if key.is_expired(now) else until
        cap = "no cap" if key.queries is None else key.queries
        lines.append(f"{key.name:24} {key.role:10} {cap:>9}  {state}")
    return "\n".join(lines)


def _read(path: Path) -> dict[str, Key]:
    try:
        content = json.loads(path.read_text())
        if set(content) != {"format", "keys"} or content["format"] != FORMAT:
            raise ValueError
        return {identity: Key(**fields) for identity, fields in content["keys"].items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise KeysDamaged(
            f"the custodian's {path.name} is not readable. "
            "Restore it, or delete it and make new keys."
        ) from error


def _write(path: Path, keys: dict[str, Key]) -> None:
    """Replace the file. The new file and its name are on the disk when this returns."""
    scratch = path.with_suffix(".part")
    scratch.unlink(missing_ok=True)
    with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        content = {identity: asdict(key) for identity, key in keys.items()}
        json.dump({"format": FORMAT, "keys": content}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _timestamp(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput("expires", "an ISO date or time, such as 2027-01-31", text) from error
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
