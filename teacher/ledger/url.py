"""The place of a ledger or an anchor: a path, or a schema of a PostgreSQL server."""

import re
from contextlib import suppress
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit

from ...wall.errors import InvalidInput

FORM = "postgresql://ROLE@HOST:PORT/DATABASE?schema=NAME"
OPTIONS = ("schema", "sslmode", "sslrootcert", "socket")
SSL_MODES = ("verify-full", "verify-ca", "require", "disable")
NAME = r"[A-Za-z_][\w.-]{0,62}"
SCHEMA = r"(?!pg_)[a-z_][a-z0-9_]{0,62}"
HOST = r"[A-Za-z0-9.:-]{1,253}"


@dataclass(frozen=True)
class LedgerUrl:
    """The address of a ledger or an anchor on a PostgreSQL server: a schema of a database. It holds
    no secret and may be printed; yet no error repeats any part of it.

    ``host``, ``socket``: of the server, or the directory of its Unix socket. ``sslmode``: libpq's;
    by default the certificate is verified over a network. ``sslrootcert``: file of the authorities
    that may have signed it; libpq's default when empty. ``setting``: what errors call it.
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
    def parse(cls, text: str, setting: str = "ledger") -> "LedgerUrl":
        """Parse ``postgresql://ROLE@HOST:PORT/DATABASE?schema=NAME``.

        A password is refused: libpq takes it from PGPASSWORD or ~/.pgpass, where no program prints
        it. Raises InvalidInput, which repeats nothing of ``text``.
        """
        with suppress(ValueError):  # whose text repeats the URL, so it is no cause either
            parts = urlsplit(text)
            port, strict = parts.port, bool(parts.query)
            pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=strict)
            options = dict(pairs)
            if parts.password is not None or "password" in options:
                rule = "without a password, which belongs into ~/.pgpass or PGPASSWORD"
                _refuse(setting, rule, "one")
            understood = len(options) == len(pairs) and {*options} <= {*OPTIONS}
            if parts.scheme == "postgresql" and not parts.fragment and understood:
                return cls(
                    role=unquote(parts.username or ""),
                    database=unquote(parts.path[1:]),
                    schema=options.pop("schema", ""),
                    host=parts.hostname or "",
                    port=port or 5432,
                    setting=setting,
                    **options,
                )
        _refuse(setting, f"of the form {FORM}; options are {', '.join(OPTIONS)}")


Place = Path | LedgerUrl


def _refuse(setting: str, rule: str, value: str = "another form") -> NoReturn:
    raise InvalidInput(setting, rule, value)
