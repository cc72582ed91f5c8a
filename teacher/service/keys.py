"""API keys of analysts and custodians. A key is shown once; only a hash of it is stored.

A key is 256 random bits, so one SHA-256 of it is as hard to invert as the key is to guess. Secrets
are compared in constant time, also if the public half is unknown.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

import sqlalchemy as sa

from ...wall.errors import InvalidInput, LedgerMismatch
from ...wall.guarantee import NAME
from ..ledger.database import SqliteFile
from ..private_files import open_lock, require_private

KEYS = "keys.sqlite"
Role = Literal["analyst", "custodian"]
TOKEN = re.compile(r"lw_([0-9a-f]{16})_([0-9a-f]{64})")
TABLE = sa.Table(
    "keys",
    sa.MetaData(),
    sa.Column("identity", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("queries", sa.BigInteger),
    sa.Column("expires", sa.Float),
    sa.Column("revoked", sa.Boolean, nullable=False),
    sa.Column("expired", sa.Boolean, nullable=False),
)
READ = sa.select(TABLE).order_by(sa.text("rowid"))


class KeysDamaged(LedgerMismatch):
    """The file of keys can not be read, or not be written when it has to be."""


@dataclass(frozen=True)
class Key:
    """The holder of a key and what it allows.

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

    def is_expired(self, now: float) -> bool:
        return self.expired or (self.expires is not None and now >= self.expires)

    def is_valid(self, now: float) -> bool:
        return not self.revoked and not self.is_expired(now)


class Keys:
    """The keys of one custodian's directory, in a file of mode 0600.

    Every access first stores durably which keys have expired. So a key once seen expired is valid
    in no process again, whatever its clock says. Methods raise KeysDamaged where that fails.
    ``in_memory``: further keys by public half, which are never stored.
    """

    def __init__(self, directory: Path, in_memory: dict[str, Key] | None = None) -> None:
        self._path, self._in_memory = directory / KEYS, in_memory or {}
        self._database = SqliteFile(self._path, "keys", "EXTRA")
        self._expired: set[str] = set()  # public halves of keys that this process saw expire

    def add(
        self, name: str, role: str, queries: int | None = None, expires: str | None = None
    ) -> str:
        """Add a key for ``name`` and return its token, which is not stored.

        ``expires``: an ISO date or time, in UTC unless it names a zone. Raises InvalidInput for a
        name that has a valid key, a time that has passed, or settings out of range.
        """
        if not re.fullmatch(NAME, name):
            rule = "1 to 64 letters, digits, dots, dashes, @ or underscores"
            raise InvalidInput("name", rule, name)
        if role not in get_args(Role):
            raise InvalidInput("role", f"one of {', '.join(get_args(Role))}", role)
        if queries is not None and not 1 <= queries < 1 << 63:
            raise InvalidInput("queries", "from 1 to 2^63 - 1", queries)
        identity, secret = secrets.token_hex(8), secrets.token_hex(32)
        end = None if expires is None else _timestamp(expires)
        if end is not None and end <= time.time():
            raise InvalidInput("expires", "a time to come (UTC)", expires)
        row = (identity, name, role, digest_of(secret), queries, end, False, False)
        if self._path.is_symlink():
            open_lock(self._path)  # raises
        self.listed()  # stores what has expired
        with self._writing() as connection:
            keys = _stored(connection).values()
            if any(other.name == name and other.is_valid(time.time()) for other in keys):
                rule, cure = "of nobody who holds a valid key", "Revoke that key first."
                raise InvalidInput("name", rule, name, cure)
            connection.execute(TABLE.insert().values(row))
        return token_of(identity, secret)

    def revoke(self, name: str) -> None:
        """Revoke all keys of a name. Raises InvalidInput where there are none."""
        with self._writing() as connection:
            named = TABLE.update().where(TABLE.c.name == name)
            if not connection.execute(named.values(revoked=True)).rowcount:
                raise InvalidInput("name", "of somebody who has a key", name)

    def listed(self) -> dict[str, Key]:
        """All keys by their public half."""
        stored, now = self._read(), time.time()
        every = {**stored, **self._in_memory}
        self._expired |= {identity for identity, key in every.items() if key.is_expired(now)}
        unnoted = [i for i, key in stored.items() if i in self._expired and not key.expired]
        if unnoted:
            with self._writing() as connection:
                ended = TABLE.update().where(TABLE.c.identity.in_(unnoted))
                connection.execute(ended.values(expired=True))
        return {i: replace(key, expired=i in self._expired) for i, key in every.items()}

    def authenticate(self, token: str) -> Key | None:
        """The valid key of a token; None for any other text, after the same comparison."""
        parts = TOKEN.fullmatch(token)
        identity, secret = parts.groups() if parts else ("", "")
        key = self.listed().get(identity)
        same = hmac.compare_digest(digest_of(secret), key.digest if key else "0" * 64)
        return key if key is not None and same and key.is_valid(time.time()) else None

    def _read(self) -> dict[str, Key]:
        try:
            if not self._path.stat().st_size:
                return {}  # the first writer has not committed yet
            with self._database.reading() as connection:
                return _stored(connection)
        except FileNotFoundError:
            return {}
        except (OSError, LedgerMismatch) as error:
            text = f"the custodian's {KEYS} is not readable. Restore it, or delete it and make new"
            raise KeysDamaged(f"{text} keys.") from error

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        directory = self._path.parent
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            require_private(directory)
            open_lock(self._path).close()
            with self._database.transaction() as connection:
                TABLE.create(connection, checkfirst=True)
                yield connection
        except (OSError, LedgerMismatch) as error:
            text = f"the custodian's {KEYS} can not be written, and nobody gets in while an expired"
            raise KeysDamaged(f"{text} key is not noted in it.") from error


def _stored(connection: sa.Connection) -> dict[str, Key]:
    """The keys by their public half."""
    rows = (dict(row) for row in connection.execute(READ).mappings())
    return {row.pop("identity"): Key(**row) for row in rows}


def token_of(identity: str, secret: str) -> str:
    """The token that a caller sends: public half (16 hex digits) and secret (64)."""
    return f"lw_{identity}_{secret}"


def digest_of(secret: str) -> str:
    """SHA-256 (hex) of a key's secret half."""
    return hashlib.sha256(secret.encode()).hexdigest()


def minute(seconds: float) -> str:
    """A time (seconds since 1970, UTC) as text, to the minute."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def render(keys: dict[str, Key]) -> str:
    """The keys as text, one a line, without secrets. For the custodian."""
    now = time.time()
    lines = [f"{'name':24} {'role':10} {'queries':>9}  valid until"]
    for key in keys.values():
        until = "never ends" if key.expires is None else minute(key.expires)
        state = "revoked" if key.revoked else f"expired {until}" if key.is_expired(now) else until
        cap = "no cap" if key.queries is None else key.queries
        lines.append(f"{key.name:24} {key.role:10} {cap:>9}  {state}")
    return "\n".join(lines)


def _timestamp(text: str) -> float:
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput("expires", "an ISO date or time, such as 2030-01-31", text) from error
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
