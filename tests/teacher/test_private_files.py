"""The custodian's directory: who may read and write what lies there."""

import os
import stat

import pytest

from labelwall import pipeline
from labelwall.teacher import custodian
from labelwall.teacher.custodian import LOCK
from labelwall.teacher.private_files import ERRORS, LARGEST_LOG, log_failure, open_lock
from labelwall.teacher.service.keys import Keys, KeysDamaged
from labelwall.teacher.service.server import server
from labelwall.teacher.service.service_config import ServiceConfig
from labelwall.wall.errors import InvalidInput, LedgerMismatch
from labelwall.wall.messages import Queries
from tests.teacher.service import tiny
from tests.teacher.service.test_connection import self_signed


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_files_are_their_owners(tmp_path):
    """Files that an earlier version wrote for everybody are closed when the directory is opened."""
    tiny.make(tmp_path).custodian.close()
    (tmp_path / "ledger.sqlite").chmod(0o644)
    tmp_path.chmod(0o755)
    tiny.make(tmp_path).custodian.close()
    assert mode(tmp_path) == 0o700
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name: oct(mode(path)) for path in files} == {p.name: "0o600" for p in files}


@pytest.mark.parametrize("name", [LOCK, "keys.sqlite"])
def test_a_lock_follows_no_symbolic_link(tmp_path, name):
    other, folder = tmp_path / "other", tmp_path / "custodian"
    other.write_text("something that matters")
    folder.mkdir(mode=0o700)
    (folder / name).symlink_to(other)
    with pytest.raises(InvalidInput, match="a symbolic link"):
        Keys(folder).add("ann", "analyst") if name != LOCK else tiny.make(folder)
    assert other.read_text() == "something that matters"


def test_keys_are_not_kept_where_others_can_write(tmp_path):
    open_to_all, new = tmp_path / "open", tmp_path / "new"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(InvalidInput, match="nobody else can write"):
        Keys(open_to_all).add("ann", "analyst")
    assert not list(open_to_all.iterdir())
    Keys(new).add("ann", "analyst")
    assert (mode(new), mode(new / "keys.sqlite")) == (0o700, 0o600)


def test_the_log_of_failures_stays_small_and_a_full_disk_does_not_stop_it(tmp_path):
    for number in range(300):
        try:
            raise ValueError(f"{number} " + "x" * 20_000)
        except ValueError:
            log_failure(tmp_path)
    newest, before = tmp_path / ERRORS, tmp_path / f"{ERRORS}.1"
    assert newest.stat().st_size + before.stat().st_size < 3 * LARGEST_LOG
    assert "299 xxx" in newest.read_text()
    assert mode(newest) == 0o600
    assert {*tmp_path.iterdir()} == {newest, before}
    log_failure(tmp_path / "missing")
    newest.unlink()
    newest.symlink_to(tmp_path / "elsewhere")
    log_failure(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_damaged_files_say_which(tmp_path):
    tiny.make(tmp_path).custodian.close()
    identity = (tmp_path / "dataset.json").read_bytes()
    for damaged in (b"\xff" + identity[1:], identity[:-1], b"[]", b""):
        (tmp_path / "dataset.json").write_bytes(damaged)
        with pytest.raises(LedgerMismatch, match=r"dataset\.json is damaged"):
            tiny.make(tmp_path)
    (tmp_path / "dataset.json").write_bytes(identity)
    made = tiny.make(tmp_path)
    with tiny.served(made) as url:
        keys = (tmp_path / "keys.sqlite").read_bytes()
        (tmp_path / "keys.sqlite").write_bytes(keys[1:])
        reply = tiny.call(url, made.tokens["ann"])
        assert (reply.status_code, reply.json()["code"]) == (503, "keys_unreadable")
        with pytest.raises(KeysDamaged, match=r"keys\.sqlite is not readable"):
            Keys(tmp_path).listed()


def test_tls_files_that_do_not_work_are_one_line(tmp_path):
    certificate, key = self_signed(tmp_path), tmp_path / "key.pem"
    config = ServiceConfig(port=0, certfile=str(certificate), keyfile=str(key))
    app = tiny.make(tmp_path / "service").app
    key.chmod(0o644)
    with pytest.raises(InvalidInput, match=r"service\.keyfile"):
        server(app, config)
    key.chmod(0o640)
    server(app, config)
    certificate.write_text("no certificate")
    with pytest.raises(InvalidInput, match="a certificate chain and its private key"):
        server(app, config)


def test_a_service_whose_lock_was_deleted_answers_nothing_more(tmp_path):
    """A second process can lock the new file, so the first one stops."""
    made = tiny.make(tmp_path)
    with tiny.served(made) as url, tiny.client(url, made.tokens["ann"], patience=0) as ann:
        ann.answer(Queries(tiny.rows(3, 1)))
        (tmp_path / LOCK).unlink()
        second = tiny.make(tmp_path)
        with pytest.raises(LedgerMismatch, match="ledger"):
            ann.answer(Queries(tiny.rows(3, 2)))
        assert second.custodian.ledger.state.spent[0, "screen"] == 3
        second.custodian.close()


def test_a_lock_that_was_deleted_while_it_was_opened_excludes_nobody(tmp_path, monkeypatch):
    def opened(path):
        file = open_lock(path)
        path.unlink()
        return file

    monkeypatch.setattr(custodian, "open_lock", opened)
    with pytest.raises(InvalidInput, match="one process at a time"):
        tiny.make(tmp_path)


@pytest.mark.parametrize("command", ["run", "predict", "records", "data", "serve", "keys"])
def test_files_of_private_commands_are_their_owners_from_the_beginning(
    tmp_path, command, monkeypatch
):
    def main(_):
        (tmp_path / "new").touch()
        return 0

    module = "run_folders" if command in pipeline.FILES else "configured"
    monkeypatch.setattr(f"labelwall.experiment.commands.{module}.{command}", main)
    before = os.umask(0o022)
    try:
        assert pipeline.main([command]) == 0
    finally:
        os.umask(before)
    assert mode(tmp_path / "new") == 0o600
