"""A throw-away PostgreSQL server on a Unix socket in a directory that nobody else enters, as
durable as a ledger asks for. initdb refuses to work for root; then it runs as another user."""

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from labelwall.teacher.ledger.auditor.auditor import Finding, audit
from labelwall.teacher.ledger.database import open_database
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.ledger.url import LedgerUrl, Place

MISSING = "PostgreSQL's programs are not installed (Debian package postgresql)"
OWNER, GUARDED = "owner", "guarded"  # a role that needs no password, and one that does
DATABASE = "postgres"
SETTINGS = """listen_addresses = ''
max_connections = 60
shared_buffers = 16MB
autovacuum = off
port = 5432
"""


def rows(place: Place, statement: str, **values: object) -> list[Any]:
    """The result of an SQL statement on a ledger's tables. Changes are committed."""
    database = open_database(place)
    with database.transaction() as connection:
        found = connection.execute(sa.text(statement), values)
        return [tuple(row) for row in found] if found.returns_rows else []


def programs() -> Path | None:
    """The folder of initdb and pg_ctl, None where they are not installed."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else Path("/usr/lib/postgresql").glob("*/bin")
    return max(
        (folder for folder in folders if (folder / "initdb").exists()),
        default=None,
        key=lambda f: f.parent.name.zfill(3),
    )


def address(place: Place) -> str:
    """A ledger's place as a process is told of it."""
    return (
        str(place)
        if isinstance(place, Path)
        else f"postgresql://{OWNER}@/{DATABASE}?schema={place.schema}&socket={place.socket}"
    )


def swept(folder: Path, socket: str) -> Place:
    """The ledger of one kill in a sweep: a file in ``folder``, or a new schema on the server."""
    schema = f"{folder.parent.name}_{folder.name}"
    return LedgerUrl(OWNER, DATABASE, schema, socket=socket) if socket else folder / "ledger.sqlite"


def copied(place: Place, name: str) -> Place:
    """A copy of a ledger that nobody is writing: a file beside it, or a schema on its server."""
    if isinstance(place, Path):
        return Path(shutil.copyfile(place, place.with_name(name)))
    server = Server(Path(place.socket))
    tables = rows(place, f"SELECT tablename FROM pg_tables WHERE schemaname = '{place.schema}'")
    server.administer(f"CREATE SCHEMA {name}")
    for (table,) in tables:
        old, new = f"{place.schema}.{table}", f"{name}.{table}"
        server.administer(f"CREATE TABLE {new} (LIKE {old} INCLUDING ALL)")
        server.administer(f"INSERT INTO {new} SELECT * FROM {old}")
    return replace(place, schema=name)


def audited(place: Place, folder: Path) -> Finding:
    """The audit of a ledger, or of its export where the ledger is no file."""
    if isinstance(place, Path):
        return audit(place)
    Ledger(place).export(folder / "export.sqlite")
    return audit(folder / "export.sqlite")


@dataclass(frozen=True)
class Server:
    """A running server. ``home``: its directory, with the data, the log and the socket."""

    home: Path

    def schema(self, role: str = OWNER) -> LedgerUrl:
        """The address of a ledger that is not there yet."""
        return LedgerUrl(role, DATABASE, f"s{uuid.uuid4().hex}", socket=str(self.home))

    def login(self, role: str) -> psycopg.Connection:
        """A connection that commits each statement."""
        return psycopg.connect(host=str(self.home), user=role, dbname=DATABASE, autocommit=True)

    def set_for(self, role: str, setting: str) -> None:
        """A setting of a superuser, who is created where there is none."""
        with suppress(psycopg.errors.DuplicateObject):
            self.administer(f"CREATE ROLE {role} LOGIN SUPERUSER")
        self.administer(f"ALTER ROLE {role} SET {setting}")

    def administer(self, *statements: str) -> None:
        """Run SQL as the server's owner, outside any ledger's transaction."""
        with self.login(OWNER) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def tables_hold(self, content: bytes) -> bool:
        """Whether bytes stand in a file of a table, after a checkpoint. Not looked at: WAL."""
        self.administer("CHECKPOINT")
        files = [path for path in (self.home / "data" / "base").rglob("*") if path.is_file()]
        return any(content in path.read_bytes() for path in files)

    def start(self) -> None:
        self._program("pg_ctl", "-D", "data", "-l", "log", "-w", "start")

    def stop(self, mode: str = "fast") -> None:
        """``mode``: "immediate" is a crash."""
        self._program("pg_ctl", "-D", "data", "-m", mode, "-w", "stop")

    def _program(self, name: str, *arguments: str) -> None:
        folder, user, other = programs(), _user(), dict[str, Any]()
        assert folder is not None
        if user is not None:
            other = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        done = subprocess.run(
            [folder / name, *arguments],
            cwd=self.home,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C", "PGCTLTIMEOUT": "600"},  # seconds
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            **other,
        )
        assert done.returncode == 0, done.stdout.decode(errors="replace")


def _user() -> pwd.struct_passwd | None:
    """Who the server runs as where that is not the user who tests."""
    if os.getuid():
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return pwd.getpwnam("postgres" if "postgres" in names else "nobody")


@contextmanager
def new_server() -> Iterator[Server]:
    """A new server, deleted afterwards. Skips the test where the programs are missing."""
    if programs() is None:
        pytest.skip(MISSING)
    # A socket's path must be short.
    root = os.environ.get("PYTEST_DEBUG_TEMPROOT", "/tmp")
    server = Server(Path(tempfile.mkdtemp(prefix="lw", dir=root)))
    user = _user()
    if user is not None:
        os.chown(server.home, user.pw_uid, user.pw_gid)
    how = ("-U", OWNER, "--auth=trust", "--no-sync", "--no-locale", "-E", "UTF8")
    server._program("initdb", "-D", "data", *how)
    with (server.home / "data" / "postgresql.conf").open("a") as file:
        file.write(f"{SETTINGS}unix_socket_directories = '{server.home}'\n")
    access = server.home / "data" / "pg_hba.conf"
    access.write_text(f"local all {GUARDED} scram-sha-256\n{access.read_text()}")
    try:
        server.start()
        yield server
    finally:
        if (server.home / "data" / "postmaster.pid").exists():
            server.stop("immediate")
        shutil.rmtree(server.home)
