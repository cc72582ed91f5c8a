"""A ledger's database: an SQLite file, or a schema of a PostgreSQL server.

Both give the ledger the same guarantees, and only this file knows the differences. A transaction is
exclusive from its first statement on: it reads the newest state, and nobody else writes until it
ends. A commit that returns is durable. Any failure, also a connection lost during COMMIT, is a
LedgerMismatch; the next read then shows whether the transaction was stored. No connection outlives
its transaction, so no broken connection is used again, and a fork shares none.

On PostgreSQL: `READ COMMITTED`, then `LOCK TABLE entries IN EXCLUSIVE MODE`. The lock makes
transactions serial. Each statement after it has its own snapshot, with everything that the previous
owner of the lock committed. (Under `REPEATABLE READ` the one snapshot may be older than the lock.)
The lock stops every other writer of the table, too; plain reads continue.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa

from ...wall.errors import LedgerMismatch, extra
from .url import LedgerUrl, Place

Work = Callable[[sa.Connection], None]

LOCKED = {"ledger": "entries", "anchor": "anchor", "keys": "keys"}
PUBLIC = ("entries", "head", "extractors")
LOCK_SECONDS = 30  # of waiting for the lock
IDLE_SECONDS = 300  # of silence within a transaction; the client's machine may be gone
WAIT = {"timeout": LOCK_SECONDS}
CONNECT = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60000,
}

# One round trip: settings of this transaction, how durable its commit is, and on how many private
# tables another role has a privilege: by a grant, as a member of a role that has one (such as
# one of MIGHTY), or as one that may become the owner or a superuser. Superusers read everything
# anyway. From version 16 on who created a role is a member that may not become it.
MIGHTY = (
    *("pg_read_all_data", "pg_write_all_data"),
    *("pg_read_server_files", "pg_write_server_files", "pg_execute_server_program"),
)
ANY = "SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER"
ENTER = sa.text(f"""
SELECT set_config('search_path', quote_ident(:schema) || ', pg_temp', true),
    set_config('lock_timeout', '{LOCK_SECONDS}s', true),
    set_config('idle_in_transaction_session_timeout', '{IDLE_SECONDS}s', true),
    current_setting('fsync') AS fsync,
    current_setting('full_page_writes') AS full_page_writes,
    current_setting('synchronous_commit') AS synchronous_commit,
    (SELECT count(*) FROM pg_catalog.pg_class AS c
        JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace AND n.nspname = :schema
        LEFT JOIN LATERAL pg_catalog.aclexplode(c.relacl) AS may ON true
        WHERE c.relkind IN ('r', 'p', 'v', 'm') AND c.relname NOT IN {PUBLIC}
        AND (may.grantee NOT IN (c.relowner, CAST(current_user AS regrole))
            OR EXISTS (SELECT FROM pg_catalog.pg_attribute AS a
                WHERE a.attrelid = c.oid AND a.attacl IS NOT NULL)
            OR EXISTS (SELECT FROM pg_catalog.pg_roles AS r
                WHERE NOT r.rolsuper AND r.oid NOT IN (c.relowner, CAST(current_user AS regrole))
                AND r.rolname !~ '^pg_'
                AND (pg_catalog.has_table_privilege(r.oid, c.oid, '{ANY}')
                    OR EXISTS (SELECT FROM pg_catalog.pg_roles AS p
                        WHERE (p.rolsuper OR p.oid = c.relowner OR p.rolname IN {MIGHTY})
                        AND pg_catalog.pg_has_role(r.oid, p.oid, CASE
                            WHEN CAST(current_setting('server_version_num') AS integer) < 160000
                            THEN 'MEMBER' ELSE 'SET' END)))))) AS readers
""")
DURABLE = {
    "fsync": ("on",),
    "full_page_writes": ("on",),
    "synchronous_commit": ("on", "remote_apply"),
}


class Database:
    """The database of a ledger, an anchor or keys. Errors call it ``name``, its content ``kind``.

    ``_table``: the one that a transaction locks, and whose existence shows that it was set up.
    """

    _engine: sa.Engine

    def __init__(self, name: str, kind: str, schema: str = "") -> None:
        self.name, self.kind, self._schema, self._table = name, kind, schema, LOCKED[kind]

    def exists(self) -> bool:
        """Whether it was set up. Raises LedgerMismatch where that can not be seen."""
        try:
            with self._engine.connect() as connection:
                return sa.inspect(connection).has_table(self._table, schema=self._schema or None)
        except sa.exc.DBAPIError as error:
            # The driver speaks of a place and a catalogue: nothing private, and no password.
            reason = " ".join(str(error.orig).split())
            raise LedgerMismatch(
                f"the {self.kind} {self.name} can not be reached: {reason}"
            ) from error

    def create(self, work: Work) -> None:
        """Let ``work`` write the first rows: all or none, and never over another's."""
        raise NotImplementedError

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """An exclusive, durable transaction. Raises LedgerMismatch for every database error."""
        with self._failures(), self._engine.begin() as connection:
            self._enter(connection)
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Plain reads, which keep no writer waiting and wait for none. Raises LedgerMismatch."""
        with self._failures(), self._engine.connect() as connection:
            self._prepare(connection)
            yield connection

    def purge(self, table: str) -> None:
        """Erase the deleted rows of ``table`` from the database's own files."""

    def _enter(self, connection: sa.Connection) -> None:
        """The first statements of a transaction."""
        raise NotImplementedError

    def _prepare(self, connection: sa.Connection) -> None:
        """The first statements of a connection."""

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Replace a driver's error, whose text may contain rows, by a constant one."""
        try:
            yield
        except sa.exc.SQLAlchemyError as error:
            driver = getattr(error, "orig", None)
            full = getattr(driver, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            reason = "on a disk that is full" if full else "not readable or not writable"
            raise LedgerMismatch(
                f"the {self.kind} is {reason}. Nothing was released; what was stored shows when it "
                "is read again."
            ) from error


class SqliteFile(Database):
    """A file, locked by BEGIN IMMEDIATE; freed pages are overwritten at once.

    ``synchronous``: FULL or EXTRA. With EXTRA a power failure does not undo the last commit either,
    at half as long again a commit.
    """

    def __init__(self, path: Path, kind: str = "ledger", synchronous: str = "FULL") -> None:
        super().__init__(path.name, kind)
        self._path, self._synchronous = path, synchronous
        self._engine = sa.create_engine(
            f"sqlite:///{path}", poolclass=sa.pool.NullPool, hide_parameters=True, connect_args=WAIT
        )
        sa.event.listen(self._engine, "connect", self._connect)

    def exists(self) -> bool:
        return self._path.is_file() and super().exists()

    def create(self, work: Work) -> None:
        try:
            with suppress(FileExistsError):
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise LedgerMismatch(
                f"the {self.kind} {self.name} can not be created: {error.strerror}."
            ) from error
        with self.transaction() as connection:
            if sa.inspect(connection).has_table(self._table):
                raise LedgerMismatch(f"there is a {self.kind} {self.name} already.")
            work(connection)

    def _connect(self, connection: sqlite3.Connection, _: object) -> None:
        # The driver's own implicit BEGIN would take a shared lock first.
        connection.isolation_level = None
        connection.execute(f"PRAGMA synchronous={self._synchronous}")
        connection.execute("PRAGMA secure_delete=ON")

    def _enter(self, connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def write_file(path: Path, work: Work) -> None:
    """Write an SQLite file atomically, replacing an existing one."""
    scratch = path.with_name(path.name + ".part")
    scratch.unlink(missing_ok=True)
    with SqliteFile(scratch).transaction() as connection:
        work(connection)
    scratch.replace(path)


class PostgresSchema(Database):
    """A schema for one data set, with its own privileges, locks and backups."""

    def __init__(self, url: LedgerUrl, kind: str = "ledger") -> None:
        super().__init__(f"{url.schema!r} of the database {url.database!r}", kind, url.schema)
        query = {"host": url.socket} if url.socket else {"sslmode": url.sslmode}
        if url.sslrootcert and not url.socket:
            query["sslrootcert"] = url.sslrootcert
        address = sa.URL.create(
            "postgresql+psycopg",
            url.role,
            host=url.host or None,
            port=url.port,
            database=url.database,
            query=query,
        )
        with extra("postgresql", "ledgers on a server"):
            self._engine = sa.create_engine(
                address,
                poolclass=sa.pool.NullPool,
                hide_parameters=True,
                isolation_level="READ COMMITTED",
                use_native_hstore=False,
                connect_args=CONNECT,
            )

    def create(self, work: Work) -> None:
        with self._failures(), self._engine.begin() as connection:
            self._prepare(connection)
            if not sa.inspect(connection).has_schema(self._schema):
                connection.execute(sa.schema.CreateSchema(self._schema))
            # Fails where the tables exist, also where another process creates them meanwhile.
            work(connection)

    def purge(self, table: str) -> None:
        """Rewrite the table. WAL, replicas and backups keep deleted rows: see the guide."""
        with (
            self._failures(),
            self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        ):
            connection.exec_driver_sql(f"SET lock_timeout = '{LOCK_SECONDS}s'")
            connection.exec_driver_sql(f'VACUUM (FULL) "{self._schema}"."{table}"')

    def _enter(self, connection: sa.Connection) -> None:
        self._prepare(connection)
        connection.exec_driver_sql(f"LOCK TABLE {self._table} IN EXCLUSIVE MODE")

    def _prepare(self, connection: sa.Connection) -> None:
        values = connection.execute(ENTER, {"schema": self._schema}).mappings().one()
        for setting, durable in DURABLE.items():
            if values[setting] not in durable:
                raise LedgerMismatch(
                    f"`{setting}` of the PostgreSQL server must be {' or '.join(durable)} for this "
                    f"role and database. Found {values[setting]!r}. Nothing was released."
                )
        if values["readers"]:
            raise LedgerMismatch(
                f"a role besides the owner has a privilege on a private table of {self.name}. "
                "Revoke it."
            )


def open_database(place: Place, kind: str = "ledger", anchored: bool = False) -> Database:
    """The database at a place. Nothing is opened or created yet.

    ``anchored``: no power failure may undo a commit of it: of an anchor, or of a ledger with one.
    """
    if isinstance(place, LedgerUrl):
        return PostgresSchema(place, kind)
    return SqliteFile(place, kind, "EXTRA" if anchored else "FULL")
