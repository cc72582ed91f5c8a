"""API keys: who may ask, and who keeps the records. A key is shown once; what is kept of it is a hash.

A key is 256 random bits, so one SHA-256 of it is as hard to undo as it is to guess; a slow hash is for passwords. Secrets are
compared in constant time, also where the key's public half is unknown.
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

from labelwall.wall.adversary import NAME
from labelwall.wall.errors import InvalidInput, LedgerMismatch

KEYS, FORMAT = "keys.json", 1
Role = Literal["analyst", "custodian"]
TOKEN = re.compile(r"lw_([0-9a-f]{16})_([0-9a-f]{64})")


@dataclass(frozen=True)
class Key:
    """Who holds a key and what it allows.

    ``name``: the caller's, shown in the custodian's tables. ``digest``: SHA-256 (hex) of the secret. ``queries``: at most so many
    new queries are charged to calls under this name, None for no limit below the plan's. ``expires``: seconds since 1970 (UTC),
    None for never. ``expired``: a process has seen ``expires`` pass. It stays so when the clock goes back.
    """

    name: str
    role: Role
    digest: str
    queries: int | None = None
    expires: float | None = None
    revoked: bool = False
    expired: bool = False

    def __post_init__(self) -> None:
        texts = (
            isinstance(self.name, str)
            and isinstance(self.digest, str)
            and re.fullmatch("[0-9a-f]{64}", self.digest)
        )
        counted = self.queries is None or type(self.queries) is int
        ends = self.expires is None or (
            type(self.expires) in (int, float) and math.isfinite(self.expires)
        )
        flags = type(self.revoked) is bool and type(self.expired) is bool
        if not (texts and counted and ends and flags and self.role in get_args(Role)):
            raise ValueError("a field of a key has another type")

    def over(self, now: float) -> bool:
        """Whether the key's time has passed at ``now`` (seconds since 1970), or had passed before."""
        return self.expired or (self.expires is not None and now >= self.expires)

    def valid(self, now: float) -> bool:
        return not self.revoked and not self.over(now)


class Keys:
    """The keys of one custodian's directory, in a file of mode 0600. Changes by other processes are seen at once.

    Whoever looks at the keys, for whatever reason, writes down which have expired, durably, before anybody is let in. So a key
    that was once seen expired is valid in no process any more, whatever its clock says.

    ``more``: keys by public half that live in memory alone.

    Methods raise LedgerMismatch where the file can not be read, or not be written though it has to be.
    """

    def __init__(self, directory: Path, more: dict[str, Key] | None = None) -> None:
        self._path, self._more = directory / KEYS, more or {}
        self._seen: tuple[int, int] | None = None
        self._keys: dict[str, Key] = {}
        self._over: set[str] = set()  # public halves of keys that this process saw expire

    def add(
        self, name: str, role: str, queries: int | None = None, expires: str | None = None
    ) -> str:
        """A new key for ``name``; returns the token, which is kept nowhere. ``expires``: an ISO date or time, else UTC.

        Raises InvalidInput for a name that has a valid key, or settings out of range.
        """
        if not re.fullmatch(NAME, name):
            raise InvalidInput(
                "name", "1 to 64 letters, digits, dots, dashes, @ or underscores", name
            )
        if role not in get_args(Role):
            raise InvalidInput("role", f"one of {', '.join(get_args(Role))}", role)
        if queries is not None and queries < 1:
            raise InvalidInput("queries", "at least 1", queries)
        identity, secret = secrets.token_hex(8), secrets.token_hex(32)
        key = Key(name, role, digest_of(secret), queries, _moment(expires))  # type: ignore[arg-type]
        with self._changing() as keys:
            if any(other.name == name and other.valid(time.time()) for other in keys.values()):
                raise InvalidInput(
                    "name", "of nobody who holds a valid key", name, "Revoke that key first."
                )
            keys[identity] = key
        return token_of(identity, secret)

    def revoke(self, name: str) -> None:
        """No key of this name is valid any more. Raises InvalidInput where there was none."""
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
        self._see({**stored, **self._more})
        if any(identity in self._over and not key.expired for identity, key in stored.items()):
            with self._changing():  # which writes down what has expired
                pass
            stored = self._stored()
        return {
            **stored,
            **{i: replace(key, expired=i in self._over) for i, key in self._more.items()},
        }

    def who(self, token: str) -> Key | None:
        """The valid key of a token; None for everything else, after the same comparison."""
        parts = TOKEN.fullmatch(token)
        identity, secret = parts.groups() if parts else ("", "")
        key = self.listed().get(identity)
        same = hmac.compare_digest(digest_of(secret), key.digest if key else "0" * 64)
        return key if key is not None and same and key.valid(time.time()) else None

    def _stored(self) -> dict[str, Key]:
        """The keys of the file, none where there is no file."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return {}
        if self._seen != (status.st_mtime_ns, status.st_ino):  # each change is a new file
            self._keys = _read(self._path)
            self._seen = (status.st_mtime_ns, status.st_ino)
        return self._keys

    def _see(self, keys: dict[str, Key]) -> None:
        """Remember which of ``keys`` have expired by now."""
        now = time.time()
        self._over |= {identity for identity, key in keys.items() if key.over(now)}

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Key]]:
        """The keys of the file, to change; they are written whole, durably, when the block ends well."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                keys = _read(self._path) if self._path.exists() else {}
                yield keys
                self._see(keys)
                _write(
                    self._path,
                    {i: replace(key, expired=i in self._over) for i, key in keys.items()},
                )
        except OSError as error:
            raise LedgerMismatch(
                f"the custodian's {self._path.name} can not be written ({error.strerror}), "
                "and nobody gets in while an expired key is not noted in it."
            ) from error


def token_of(identity: str, secret: str) -> str:
    """What a caller sends: the public half (16 hex digits) and the secret (64)."""
    return f"lw_{identity}_{secret}"


def digest_of(secret: str) -> str:
    """SHA-256 (hex) of a key's secret half."""
    return hashlib.sha256(secret.encode()).hexdigest()


def render(keys: dict[str, Key]) -> str:
    """The keys for their custodian, one a line, without secrets."""
    now = time.time()
    lines = [f"{'name':24} {'role':10} {'queries':>9}  valid until"]
    for key in keys.values():
        until = (
            "never ends"
            if key.expires is None
            else datetime.fromtimestamp(key.expires, UTC).isoformat(timespec="minutes")
        )
        state = "revoked" if key.revoked else f"expired {until}" if key.over(now) else until
        lines.append(
            f"{key.name:24} {key.role:10} {'no cap' if key.queries is None else key.queries:>9}  {state}"
        )
    return "\n".join(lines)


def _read(path: Path) -> dict[str, Key]:
    try:
        content = json.loads(path.read_text())
        if set(content) != {"format", "keys"} or content["format"] != FORMAT:
            raise ValueError
        return {identity: Key(**fields) for identity, fields in content["keys"].items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise LedgerMismatch(
            f"the custodian's {path.name} is not readable. Restore it, or delete it and make new keys."
        ) from error


def _write(path: Path, keys: dict[str, Key]) -> None:
    """Put a new file in the place of the old one; both it and its name are on the disk when this returns."""
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


def _moment(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput("expires", "an ISO date or time, such as 2027-01-31", text) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
