"""The address of a ledger or an anchor on a PostgreSQL server. No error repeats any part of it."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import InitVar, dataclass
from typing import NoReturn
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ...wall.errors import InvalidInput

FORM = "postgresql://ROLE@HOST:PORT/DATABASE?schema=NAME"
OPTIONS = ("schema", "sslmode", "sslrootcert", "socket")
SSL_MODES = ("verify-full", "verify-ca", "require", "disable")
NAME = r"[A-Za-z_][\w.-]{0,62}"
SCHEMA = r"(?!pg_)[a-z_][a-z0-9_]{0,62}"
HOST = r"[A-Za-z0-9.:-]{1,253}"


@dataclass(frozen=True)
class LedgerUrl:
    """One data set's ledger: a schema of a database. Holds no secret, and may be printed.

    Args:
        role: the custodian's role on the server.
        database: its database.
        schema: the schema of this one data set.
        host: of the server; empty for a Unix socket.
        port: of the server.
        socket: directory of the Unix socket, where there is no host.
        sslmode: libpq's; by default the server's certificate is verified over a network.
        sslrootcert: file of the authorities that may have signed it; libpq's default when empty.
        setting: the setting that errors name.
    """

    role: str
    database: str
    schema: str
    host: str = ""
    port: int = 5432
    socket: str = ""
    sslmode: str = "verify-full"
    sslrootcert: str = ""
    setting: InitVar[str] = "ledger"

    def __post_init__(self, setting: str) -> None:
        named = re.fullmatch(NAME, self.role) and re.fullmatch(NAME, self.database)
        one_address = bool(self.host) != bool(self.socket)
        if not named or not one_address or (self.host and not re.fullmatch(HOST, self.host)):
            _refuse(setting, f"of the form {FORM}, or with socket=DIRECTORY in place of the host")
        if not re.fullmatch(SCHEMA, self.schema):
            _refuse(setting, "with a schema of lower case letters, digits and _, not pg_...")
        if self.sslmode not in SSL_MODES:
            _refuse(setting, f"with an sslmode among {', '.join(SSL_MODES)}")
        if not all(path.startswith("/") for path in (self.socket, self.sslrootcert) if path):
            _refuse(setting, "with absolute paths")

    @classmethod
    def parse(cls, text: str, setting: str = "ledger") -> LedgerUrl:
        """From ``postgresql://ROLE@HOST:PORT/DATABASE?schema=NAME``.

        A password is refused: libpq takes it from PGPASSWORD or ~/.pgpass, where no program prints
        it. Raises InvalidInput, which repeats nothing of ``text``.
        """
        parts, port, options = _parts(text, setting)
        if parts.password is not None or "password" in dict(options):
            rule = "without a password, which belongs into ~/.pgpass or PGPASSWORD"
            _refuse(setting, rule, "one")
        names = [name for name, _ in options]
        known = len(set(names)) == len(names) and {*names} <= {*OPTIONS}
        if parts.scheme != "postgresql" or parts.fragment or not known:
            _refuse(setting, f"of the form {FORM}; options are {', '.join(OPTIONS)}")
        return cls(
            role=unquote(parts.username or ""),
            database=unquote(parts.path[1:]),
            schema=dict(options).get("schema", ""),
            host=parts.hostname or "",
            port=port or 5432,
            setting=setting,
            **{name: value for name, value in options if name != "schema"},
        )


def _parts(text: str, setting: str) -> tuple[SplitResult, int | None, list[tuple[str, str]]]:
    """(parts, port, options) of a URL.

    The parser's error repeats the URL, so it is not kept, not even as a cause.
    """
    with suppress(ValueError):
        parts = urlsplit(text)
        strict = bool(parts.query)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=strict)
        return parts, parts.port, options
    _refuse(setting, f"of the form {FORM}")


def _refuse(setting: str, rule: str, value: str = "another form") -> NoReturn:
    raise InvalidInput(setting, rule, value)
