"""A ledger's address says where, never how to get in; a bad one is refused without a word of it."""

import traceback

import pytest

from labelwall.experiment.config.config import Config
from labelwall.teacher.custody.groups import RoundConfig
from labelwall.teacher.ledger.url import LedgerUrl
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.errors import InvalidInput

GOOD = {
    "postgresql://custodian@db.example:5433/ledgers?schema=digits": LedgerUrl(
        "custodian", "ledgers", "digits", host="db.example", port=5433
    ),
    "postgresql://custodian@[::1]/ledgers?schema=digits&sslmode=disable": LedgerUrl(
        "custodian", "ledgers", "digits", host="::1", sslmode="disable"
    ),
    "postgresql://custodian@/ledgers?schema=digits&socket=/run/postgresql": LedgerUrl(
        "custodian", "ledgers", "digits", socket="/run/postgresql"
    ),
}
SECRET = "tr0ub4dor"
WITH_A_PASSWORD = [
    f"postgresql://custodian:{SECRET}@db.example/ledgers?schema=digits",
    f"postgresql://custodian@db.example/ledgers?schema=digits&password={SECRET}",
    # A slash ends the host, so a parser finds a bad port.
    f"postgresql://custodian:{SECRET}/x@db.example/ledgers?schema=digits",
    f"postgresql://custodian:12/{SECRET}@db.example/ledgers?schema=digits",
    f"postgresql://custodian:12#{SECRET}@db.example/ledgers?schema=digits",
    f"postgresql://custodian:12?{SECRET}@db.example/ledgers?schema=digits",
    f"postgresql://custodian:12?schema={SECRET}@db.example/ledgers",
    f"postgresql://{SECRET}:pw:x@db.example/ledgers?schema=digits",
    f"postgresql://custodian@db.example/password={SECRET}?schema=digits",
    f"postgresql://custodian@db.example/ledgers?schema=digits&sslmode={SECRET}",
    f"postgresql://custodian@{SECRET} x/ledgers?schema=digits",
    f"postgresql://[custodian:{SECRET}@db.example/ledgers",
    SECRET,
]
OTHER_MISTAKES = [
    "",
    "ledger.sqlite",
    "postgres://custodian@db.example/ledgers?schema=digits",
    "postgresql+psycopg://custodian@db.example/ledgers?schema=digits",
    "postgresql://db.example/ledgers?schema=digits",
    "postgresql://custodian@/ledgers?schema=digits",
    "postgresql://custodian@db.example/ledgers",
    "postgresql://custodian@db.example/ledgers?schema=pg_catalog",
    'postgresql://custodian@db.example/ledgers?schema=a"b',
    "postgresql://custodian@db.example/ledgers?schema=a&schema=b",
    "postgresql://custodian@db.example/ledgers?schema=a&options=-csynchronous_commit%3Doff",
    "postgresql://custodian@db.example/ledgers?schema=a&sslmode=prefer",
    "postgresql://custodian@db.example/ledgers?schema=a&sslrootcert=here.pem",
    "postgresql://custodian@db.example/ledgers?schema=a&socket=/run/postgresql",
]


@pytest.mark.parametrize("text", GOOD)
def test_an_address_is_read(text):
    """Over a network the server's certificate is checked by default."""
    url = LedgerUrl.parse(text)
    assert url == GOOD[text]
    assert url.sslmode == ("disable" if "sslmode" in text else "verify-full")


@pytest.mark.parametrize("text", [*WITH_A_PASSWORD, *OTHER_MISTAKES])
def test_a_bad_address_is_refused_without_repeating_it(text):
    known = {"data": DataConfig("mnist5k"), "rounds": [RoundConfig(queries=3)]}
    for refused in (LedgerUrl.parse, lambda text: Config(**known, ledger=text)):
        with pytest.raises(InvalidInput, match="`ledger` must be") as caught:
            refused(text)
        assert SECRET not in f"{vars(caught.value)}"
        # As a log would show it, with what caused it.
        assert SECRET not in "".join(traceback.format_exception(caught.value))
