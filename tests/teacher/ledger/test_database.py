"""Both engines: one writer at a time, durable commits, closed private tables."""

import json
import os
import threading
import time
from dataclasses import replace

import pytest
import sqlalchemy as sa

from labelwall.teacher.ledger import database as database_file
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.database import open_database
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.ledger.url import Place
from labelwall.wall.errors import LedgerMismatch
from tests.ledgers import created, identity, use_extractor
from tests.postgres import new_server
from tests.programs.kill_runner import started


def charging(place, anchor, name, noted):
    ledger, granted = Ledger(place, anchor), []
    use_extractor(ledger)
    for number in range(20):
        query = identity(f"{name}{number}")
        charge = ledger.charge(0, "screen", [query])
        if charge.granted:
            ledger.record(charge, {query: 1})
        granted += charge.granted
    noted.write_text(json.dumps(granted))


def test_a_full_disk_is_said(tmp_path):
    """SQLite's own error of it, from a file that may not grow."""
    file = open_database(tmp_path / "ledger.sqlite")

    def grow(connection: sa.Connection) -> None:
        connection.exec_driver_sql("PRAGMA max_page_count = 2")
        connection.exec_driver_sql("CREATE TABLE much (content BLOB)")
        connection.exec_driver_sql("INSERT INTO much VALUES (zeroblob(100000))")

    with pytest.raises(LedgerMismatch, match="is on a disk that is full"):
        file.create(grow)


@pytest.mark.parametrize("anchored", ["", "file", "server"])
def test_processes_that_share_a_ledger_never_pass_its_cap(place, anchored, tmp_path, request):
    """Two processes; also under an anchor. The cap is 30, so the faster one leaves 10."""
    anchor: Place | None = tmp_path / "anchor.json" if anchored == "file" else None
    if anchored == "server":
        anchor = request.getfixturevalue("postgres").schema()
    ledger = created(place, asked=30, anchor=anchor)
    use_extractor(ledger)
    noted = [tmp_path / name for name in "ab"]
    both = [started(lambda path=path: charging(place, anchor, path.name, path)) for path in noted]
    assert [os.waitpid(process, 0)[1] for process in both] == [0, 0]
    granted = [json.loads(path.read_text()) for path in noted]
    assert sum(map(len, granted)) == 30
    assert all(granted)
    ledger.export(tmp_path / "copy.sqlite")
    finding = audit(tmp_path / "copy.sqlite")
    assert (finding.problems, finding.charged) == ([], {"0/screen": 30})
    assert ledger.charge(0, "screen", ["more"]).granted == ()
    assert set(ledger.state.results) == {query for names in granted for query in names}


def test_a_transaction_is_exclusive_before_it_reads(place):
    created(place)
    database, seen = open_database(place), []

    def second():
        with open_database(place).transaction() as connection:
            seen.append(connection.exec_driver_sql("SELECT hash FROM head").scalar())

    waiting = threading.Thread(target=second)
    with database.transaction() as connection:
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
        connection.exec_driver_sql("UPDATE head SET hash = 'new'")
    waiting.join()
    assert seen == ["new"]


def test_who_writes_without_asking_waits_too(postgres):
    created(url := postgres.schema())
    with open_database(url).transaction(), pytest.raises(Exception, match="lock timeout"):
        postgres.administer("SET lock_timeout = '50ms'", f"DELETE FROM {url.schema}.entries")
    postgres.administer(f"SELECT * FROM {url.schema}.entries")


def test_a_writer_that_never_ends_is_an_error_not_a_halt(postgres, monkeypatch):
    monkeypatch.setattr(
        database_file, "ENTER", sa.text(database_file.ENTER.text.replace("'30s'", "'100ms'"))
    )
    ledger = created(url := postgres.schema())
    with open_database(url).transaction(), pytest.raises(LedgerMismatch):
        ledger.charge(0, "screen", ["a"])
    assert ledger.charge(0, "screen", ["a"]).granted == ("a",)


def test_the_isolation_level_is_the_one_that_was_argued_for(postgres):
    created(url := postgres.schema())
    postgres.set_for("strict", "default_transaction_isolation = 'serializable'")
    with open_database(replace(url, role="strict")).transaction() as connection:
        assert connection.exec_driver_sql("SHOW transaction_isolation").scalar() == "read committed"


@pytest.mark.parametrize("value", ["off", "local", "remote_write"])
def test_a_role_whose_commits_may_be_lost_is_refused(postgres, value):
    created(url := postgres.schema()).charge(0, "screen", ["a"])
    postgres.set_for(f"hasty_{value}", f"synchronous_commit = {value}")
    hasty = replace(url, role=f"hasty_{value}")
    with pytest.raises(
        LedgerMismatch, match=f"`synchronous_commit` .* must be on.* Found '{value}'"
    ):
        Ledger(hasty)
    with pytest.raises(LedgerMismatch, match="synchronous_commit"):
        created(postgres.schema(hasty.role))
    postgres.set_for(hasty.role, "synchronous_commit = remote_apply")
    assert Ledger(hasty).state.spent == {(0, "screen"): 1}


def charge_for_long(ledger):
    """A server takes changed settings in a moment after it was told to."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        ledger.charge(0, "screen", [])


@pytest.mark.slow
def test_a_server_must_wait_for_its_disk_and_keeps_confirmed_commits_in_a_crash():
    with new_server() as server:
        ledger = created(server.schema(), asked=30)
        for number in range(10):
            ledger.charge(0, "screen", [f"q{number}"])
        server.stop("immediate")
        with pytest.raises(LedgerMismatch):
            ledger.charge(0, "screen", ["while it is down"])
        server.start()
        assert ledger.charge(0, "screen", ["after"]).granted == ("after",)
        assert ledger.state.spent == {(0, "screen"): 11}
        for setting in ("fsync", "full_page_writes"):
            server.administer(f"ALTER SYSTEM SET {setting} = off", "SELECT pg_reload_conf()")
            with pytest.raises(LedgerMismatch, match=f"`{setting}` .* must be on .* Found 'off'"):
                charge_for_long(ledger)
            server.administer(f"ALTER SYSTEM RESET {setting}", "SELECT pg_reload_conf()")


def test_only_the_owner_reads_the_private_tables(postgres):
    """A custodian's role without other rights, and an auditor of the public tables."""
    url = postgres.schema("custodian")
    postgres.administer(
        "DROP ROLE IF EXISTS custodian, auditor, mighty",
        "CREATE ROLE custodian LOGIN",
        "CREATE ROLE mighty SUPERUSER",
        "CREATE ROLE auditor LOGIN",
        f"CREATE SCHEMA {url.schema} AUTHORIZATION custodian",
        f"GRANT USAGE ON SCHEMA {url.schema} TO auditor",
    )
    ledger = created(url, asked=30)
    table = "CREATE TABLE updates (id BIGINT, label INTEGER)"
    ledger.in_custody(lambda connection: connection.exec_driver_sql(table))
    postgres.administer(f"GRANT SELECT ON {url.schema}.entries, {url.schema}.head TO auditor")
    ledger.charge(0, "screen", ["a"])
    for grant in (
        "SELECT ON {}.updates TO auditor",
        "SELECT (id) ON {}.updates TO auditor",
        "UPDATE ON {}.updates TO PUBLIC",
        "pg_read_all_data TO auditor",
        "pg_execute_server_program TO auditor",
        "custodian TO auditor",
        "mighty TO auditor",
    ):
        postgres.administer(f"GRANT {grant.format(url.schema)}")
        with pytest.raises(LedgerMismatch, match="private table"):
            ledger.charge(0, "screen", ["b"])
        postgres.administer(f"REVOKE {grant.format(url.schema).replace(' TO ', ' FROM ')}")
        assert ledger.charge(0, "screen", ["b"]).granted == ("b",)
    with pytest.raises(LedgerMismatch):
        # A role that may not write is no custodian's.
        Ledger(replace(url, role="auditor"))


def test_a_password_is_the_client_librarys_affair_and_is_never_shown(postgres, monkeypatch, caplog):
    postgres.administer(
        "DROP ROLE IF EXISTS guarded", "CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'tr0ub4dor'"
    )
    url = postgres.schema("guarded")
    caplog.set_level("DEBUG")
    for wrong in ("", "tr0ub4dor-and-more"):
        monkeypatch.setenv("PGPASSWORD", wrong)
        with pytest.raises(LedgerMismatch, match=r"can not be reached: .*password") as caught:
            Ledger(url)
        assert "tr0ub4dor" not in f"{caught.value} {caught.value.__cause__}"
    monkeypatch.setenv("PGPASSWORD", "tr0ub4dor")
    ledger = created(url)
    ledger.charge(0, "screen", ["a"])
    assert "tr0ub4dor" not in f"{url} {vars(ledger)} {vars(ledger._database)} {caplog.text}"
