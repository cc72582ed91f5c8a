"""The custodian's directory serves one data set, one plan and one process at a time."""

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.custodian import Custodian, open_custodian
from labelwall.teacher.mechanisms.votes import PrivateKnn
from labelwall.wall.errors import InvalidInput, LedgerMismatch
from tests.postgres import Server

MECHANISM = PrivateKnn(k=30, threshold=10, sigma_screen=8.0, sigma_vote=4.0, sample_rate=0.5)
PLAN = Plan(1.0, 1e-5, (Slot(MECHANISM.fields(), MECHANISM.releases(5, 5)),))
DATA: dict[str, object] = {"source": "arrays", "path": "a.npz"}


def reopen(directory: Path, **changes: object) -> Custodian:
    settings: dict = {"data": DATA, "plan": PLAN, "unsafe": False, **changes}
    return open_custodian(directory, **settings)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with closing(reopen(tmp_path / "custodian")) as custodian:
        custodian.ledger.charge(0, "screen", ["a"])
    return tmp_path / "custodian"


def test_two_data_sets_get_unrelated_random_names(tmp_path: Path) -> None:
    with closing(reopen(tmp_path / "a")) as one, closing(reopen(tmp_path / "b")) as other:
        assert one.dataset != other.dataset


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"source": "arrays", "path": "b.npz"}},
        {"plan": replace(PLAN, epsilon=2.0)},
        {"unsafe": True},
        {"known_dataset": "another"},
    ],
)
def test_another_data_set_plan_or_entropy_is_refused(directory: Path, changes: dict) -> None:
    with pytest.raises(LedgerMismatch):
        reopen(directory, **changes)
    with closing(reopen(directory)) as custodian:  # the lock was given back
        assert custodian.ledger.state.remaining(0, "screen") == 4


@pytest.mark.parametrize(
    "change",
    [
        lambda stored: stored.pop("data"),
        lambda stored: stored.update(data=None),
        lambda stored: stored.pop("dataset"),
        lambda stored: stored.update(owner="unknown"),
        lambda stored: stored["data"].update(unknown=1),
        lambda stored: stored["data"].pop("path"),
        lambda stored: stored["data"].update(path="b.npz"),
    ],
)
def test_a_damaged_identity_is_refused(directory: Path, change: Callable[[dict], object]) -> None:
    path = directory / "dataset.json"
    stored = json.loads(path.read_text())
    change(stored)
    path.write_text(json.dumps(stored))
    with pytest.raises(LedgerMismatch, match="another data set"):
        reopen(directory)


@pytest.mark.parametrize(
    ("name", "rule"), [("dataset.json", "which rows"), ("ledger.sqlite", "gone")]
)
def test_a_lost_identity_is_not_guessed_and_a_lost_ledger_not_replaced_by_a_fresh_budget(
    directory: Path, name: str, rule: str
) -> None:
    (directory / name).unlink()
    with pytest.raises(LedgerMismatch, match=rule):
        reopen(directory)


def test_crash_between_ledger_and_identity_is_mended(tmp_path: Path) -> None:
    custodian = reopen(tmp_path / "c")
    custodian.close()
    (tmp_path / "c" / "dataset.json").unlink()
    with closing(reopen(tmp_path / "c")) as again:
        assert again.dataset == custodian.dataset


@pytest.mark.parametrize("server", [False, True])
def test_two_copies_of_a_directory_never_both_charge(
    tmp_path: Path, postgres: Server, server: bool
) -> None:
    anchor = postgres.schema() if server else tmp_path / "elsewhere.json"
    with closing(reopen(tmp_path / "c", anchor=anchor)) as custodian:
        custodian.ledger.charge(0, "screen", ["a"])
    shutil.copytree(tmp_path / "c", tmp_path / "copy")
    both = [reopen(tmp_path / name, anchor=anchor) for name in ("c", "copy")]
    assert both[1].ledger.charge(0, "screen", ["b"]).granted == ("b",)
    with pytest.raises(LedgerMismatch, match="another copy of it has continued"):
        both[0].ledger.charge(0, "screen", ["b"])
    for one in both:
        one.close()
    with pytest.raises(LedgerMismatch, match="another copy of it has continued"):
        reopen(tmp_path / "c", anchor=anchor)
    with pytest.raises(LedgerMismatch, match="gone"):
        reopen(tmp_path / "fresh", anchor=anchor)
    reopen(tmp_path / "copy", anchor=anchor).close()


def test_one_process_at_a_time(directory: Path) -> None:
    with closing(reopen(directory)), pytest.raises(InvalidInput, match="one process"):
        reopen(directory)


def test_a_ledger_on_a_server_belongs_to_its_directory(tmp_path: Path, postgres: Server) -> None:
    url = postgres.schema()
    with closing(reopen(tmp_path / "c", ledger_url=url)) as custodian:
        custodian.ledger.charge(0, "screen", ["a"])
    assert not (tmp_path / "c" / "ledger.sqlite").exists()
    with closing(reopen(tmp_path / "c", ledger_url=url)) as again:
        assert (again.dataset, again.ledger.state.remaining(0, "screen")) == (custodian.dataset, 4)
    with pytest.raises(LedgerMismatch, match="which rows"):  # its identity is not in this directory
        reopen(tmp_path / "elsewhere", ledger_url=url)
    with pytest.raises(LedgerMismatch, match="budget"):
        reopen(tmp_path / "c", ledger_url=url, plan=replace(PLAN, epsilon=2.0))


def test_a_directory_with_a_ledger_gets_no_other_one(
    directory: Path, tmp_path: Path, postgres: Server
) -> None:
    """Neither a new budget on a server or in a file, nor one in place of a dropped schema."""
    url = postgres.schema()
    with pytest.raises(LedgerMismatch, match="gone"):
        reopen(directory, ledger_url=url)
    reopen(tmp_path / "c", ledger_url=url).close()
    with pytest.raises(LedgerMismatch, match="gone"):
        reopen(tmp_path / "c")
    postgres.administer(f"DROP SCHEMA {url.schema} CASCADE")
    with pytest.raises(LedgerMismatch, match="gone"):
        reopen(tmp_path / "c", ledger_url=url)
