"""Where a ledger lies: an SQLite file, or a schema of a PostgreSQL server. All that differs between the two is in this file.

Both give the ledger the same. A transaction is exclusive from its first statement on: what it reads is the newest state, and
nobody else writes until it ends. A commit that returns is durable. Any failure, a connection lost during COMMIT too, is a
LedgerMismatch: whether the transaction was stored then shows when it is read again. No connection outlives its transaction, so
there is no broken one to go on with, and none that a fork would share.

On PostgreSQL: `READ COMMITTED`, then `LOCK TABLE entries IN EXCLUSIVE MODE`. The lock makes transactions serial, and each
statement after it has a snapshot of its own, which holds all that the lock's last holder committed. (Under `REPEATABLE READ` the
one snapshot may be older than the lock.) It stops every other writer of the table, too, whoever that is; plain reading goes on.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from labelwall.teacher.ledger.url import LedgerUrl
from labelwall.wall.errors import LedgerMismatch, MissingData

Place = Path | LedgerUrl
Work = Callable[[sa.Connection], None]

ENTRIES, HEAD = "entries", "head"  # the tables that are public
FAILED = "the {} is not readable or not writable. Nothing was released; what was stored shows when it is read again."
LOCK_SECONDS, IDLE_SECONDS = (
    30,
    300,
)  # waiting for the lock; holding it in silence (its machine may be gone)
WAIT = {"timeout": LOCK_SECONDS}
CONNECT = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60000,
}

# One round trip: settings for this transaction alone, how durable its commit is, and who else may read a private table.
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
        WHERE c.relkind IN ('r', 'p', 'v', 'm') AND c.relname NOT IN ('{ENTRIES}', '{HEAD}')
        AND (may.grantee NOT IN (c.relowner, CAST(current_user AS regrole))
            OR EXISTS (SELECT FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = c.oid AND a.attacl IS NOT NULL))) AS readers
""")
DURABLE = {
    "fsync": ("on",),
    "full_page_writes": ("on",),
    "synchronous_commit": ("on", "remote_apply"),
}


class Database:
    """A ledger's place. ``name``: what errors call it; ``kind``: of what lies there."""

    name: str
    kind: str = "ledger"
    _engine: sa.Engine

    def exists(self) -> bool:
        """Whether a ledger was created here. Raises LedgerMismatch where that can not be found out."""
        raise NotImplementedError

    def create(self, work: Work) -> None:
        """Let ``work`` write the first rows: all of them or none, and never over another ledger."""
        raise NotImplementedError

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """An exclusive, durable transaction. Raises LedgerMismatch for whatever goes wrong in the database."""
        with _failures(self.kind), self._engine.begin() as connection:
            self._enter(connection)
            yield connection

    def purge(self, table: str) -> None:
        """See to it that the database's own files hold no deleted row of ``table``."""
        raise NotImplementedError

    def close(self) -> None:
        self._engine.dispose()

    def _enter(self, connection: sa.Connection) -> None:
        """The first statements of a transaction."""
        raise NotImplementedError


class SqliteFile(Database):
    """A file. The lock is the file's (BEGIN IMMEDIATE); full durability; freed pages are overwritten at once.

    ``synchronous``: FULL, or EXTRA, with which a power failure does not undo the last commit either.
    """

    def __init__(self, path: Path, synchronous: str = "FULL") -> None:
        self.name, self._path, self._synchronous = path.name, path, synchronous
        self._engine = sa.create_engine(
            f"sqlite:///{path}", poolclass=sa.pool.NullPool, hide_parameters=True, connect_args=WAIT
        )
        sa.event.listen(self._engine, "connect", self._connect)

    def exists(self) -> bool:
        return self._path.is_file()

    def create(self, work: Work) -> None:
        if self._path.exists():
            raise LedgerMismatch(f"there is a ledger {self.name} already.")
        write_file(self._path, work)

    def purge(self, table: str) -> None:
        """Nothing is left to do: secure_delete."""

    def _connect(self, connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = (
            None  # the driver's own implicit BEGIN would take a shared lock first
        )
        connection.execute(f"PRAGMA synchronous={self._synchronous}")
        connection.execute("PRAGMA secure_delete=ON")

    def _enter(self, connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def write_file(path: Path, work: Work) -> None:
    """Write an SQLite file whole or not at all, over whatever was there."""
    scratch = path.with_name(path.name + ".part")
    scratch.unlink(missing_ok=True)
    database = SqliteFile(scratch)
    with database.transaction() as connection:
        work(connection)
    database.close()
    scratch.replace(path)


class PostgresSchema(Database):
    """A schema of its own for each data set: privileges, locks and backups are the data set's.

    ``kind``: of what lies there; ``table``: whose lock a transaction takes, and which says that it was created.
    """

    def __init__(self, url: LedgerUrl, kind: str = "ledger", table: str = ENTRIES) -> None:
        self.name, self._schema = f"{url.schema!r} of the database {url.database!r}", url.schema
        self.kind, self._table = kind, table
        tls = {"sslmode": url.sslmode} | (
            {"sslrootcert": url.sslrootcert} if url.sslrootcert else {}
        )
        query = {"host": url.socket} if url.socket else tls
        address = sa.URL.create(
            "postgresql+psycopg",
            url.role,
            host=url.host or None,
            port=url.port,
            database=url.database,
            query=query,
        )
        try:
            self._engine = sa.create_engine(
                address,
                poolclass=sa.pool.NullPool,
                hide_parameters=True,
                isolation_level="READ COMMITTED",
                use_native_hstore=False,
                connect_args=CONNECT,
            )
        except ModuleNotFoundError as error:
            raise MissingData(
                "a `postgresql://` address needs psycopg: pip install 'labelwall[postgresql]'."
            ) from error

    def exists(self) -> bool:
        try:
            with self._engine.connect() as connection:
                return sa.inspect(connection).has_table(self._table, schema=self._schema)
        except sa.exc.DBAPIError as error:
            said = " ".join(
                str(error.orig).split()
            )  # of an address and a catalogue: nothing private, and no password
            raise LedgerMismatch(
                f"the {self.kind} {self.name} can not be reached: {said}"
            ) from error

    def create(self, work: Work) -> None:
        with _failures(self.kind), self._engine.begin() as connection:
            self._prepare(connection)
            if not sa.inspect(connection).has_schema(self._schema):
                connection.execute(sa.schema.CreateSchema(self._schema))
            work(
                connection
            )  # fails where the tables are there, also where another process creates them meanwhile

    def purge(self, table: str) -> None:
        """Write the table anew. WAL, replicas and backups still hold what was deleted: see the guide."""
        with (
            _failures(self.kind),
            self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        ):
            connection.exec_driver_sql(f"SET lock_timeout = '{LOCK_SECONDS}s'")
            connection.exec_driver_sql(f'VACUUM (FULL) "{self._schema}"."{table}"')

    def _enter(self, connection: sa.Connection) -> None:
        self._prepare(connection)
        connection.exec_driver_sql(f"LOCK TABLE {self._table} IN EXCLUSIVE MODE")

    def _prepare(self, connection: sa.Connection) -> None:
        found = connection.execute(ENTER, {"schema": self._schema}).mappings().one()
        for setting, durable in DURABLE.items():
            if found[setting] not in durable:
                rule = f"`{setting}` of the PostgreSQL server must be {' or '.join(durable)} for this role and database."
                raise LedgerMismatch(f"{rule} Found {found[setting]!r}. Nothing was released.")
        if found["readers"]:
            raise LedgerMismatch(
                f"a role besides the owner has a privilege on a private table of {self.name}. Revoke it."
            )


def open_database(place: Place, *, anchored: bool = False) -> Database:
    """The database at a place. Nothing is opened or created yet.

    ``anchored``: an anchor follows its commits, so that none may be undone: the anchor would be ahead and refuse the ledger.
    """
    return (
        PostgresSchema(place)
        if isinstance(place, LedgerUrl)
        else SqliteFile(place, "EXTRA" if anchored else "FULL")
    )


@contextmanager
def _failures(kind: str) -> Iterator[None]:
    """A database's errors as one constant: what a driver says may hold rows."""
    try:
        yield
    except sa.exc.SQLAlchemyError as error:
        raise LedgerMismatch(FAILED.format(kind)) from error
