"""The custodian's directory serves one data set, one plan and one process at a time."""

import json
import shutil
from contextlib import closing
from dataclasses import replace

import pytest

from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.custodian import open_custodian
from labelwall.teacher.mechanisms.votes import PrivateKnn
from labelwall.wall.errors import InvalidInput, LedgerMismatch

MECHANISM = PrivateKnn(k=30, threshold=10, sigma_screen=8.0, sigma_vote=4.0, sample_rate=0.5)
PLAN = Plan(1.0, 1e-5, (Slot(MECHANISM.fields(), MECHANISM.releases(5, 5)),))
DATA: dict[str, object] = {"source": "arrays", "path": "a.npz"}


def reopen(directory, **changes):
    settings: dict = {"data": DATA, "plan": PLAN, "unsafe": False, **changes}
    return open_custodian(directory, **settings)


@pytest.fixture
def directory(tmp_path):
    with closing(reopen(tmp_path / "custodian")) as custodian:
        custodian.ledger.charge(0, "screen", ["a"])
    return tmp_path / "custodian"


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"source": "arrays", "path": "b.npz"}},
        {"plan": replace(PLAN, epsilon=2.0)},
        {"unsafe": True},
        {"known_dataset": "another"},
    ],
)
def test_another_data_set_plan_or_entropy_is_refused(directory, changes):
    with pytest.raises(LedgerMismatch):
        reopen(directory, **changes)
    with closing(reopen(directory)) as custodian:  # the lock was given back
        assert custodian.ledger.state.remaining(0, "screen") == 4


def test_other_settings_are_named_and_may_replace_those_of_a_directory_without_releases(tmp_path):
    reopen(tmp_path / "new").close()
    other = {**DATA, "label": "grade"}
    with pytest.raises(
        LedgerMismatch, match=r"data\.label differs\. Nothing .* remove that"
    ) as told:
        reopen(tmp_path / "new", data=other)
    assert str(tmp_path / "new") in str(told.value)
    shutil.rmtree(tmp_path / "new")
    reopen(tmp_path / "new", data=other).close()


def test_paths_that_moved_with_the_directory_are_not_named(tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    reopen(before / "custodian", data={**DATA, "path": str(before / "a.npz")}).close()
    before.rename(after)
    with pytest.raises(LedgerMismatch, match=r"another data set: data\.label differs"):
        reopen(after / "custodian", data={"label": "b", **DATA, "path": str(after / "a.npz")})


def test_other_settings_are_not_told_to_remove_a_directory_that_released(directory):
    with pytest.raises(LedgerMismatch, match=r"data\.path differs\. Use its settings") as told:
        reopen(directory, data={**DATA, "path": "b.npz"})
    assert "remove" not in str(told.value)


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
def test_a_damaged_identity_is_refused(directory, change):
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
    directory, name, rule
):
    (directory / name).unlink()
    with pytest.raises(LedgerMismatch, match=rule):
        reopen(directory)


def test_crash_between_ledger_and_identity_is_mended(tmp_path):
    custodian = reopen(tmp_path / "c")
    custodian.close()
    (tmp_path / "c" / "dataset.json").unlink()
    with closing(reopen(tmp_path / "c")) as again:
        assert again.dataset == custodian.dataset


def test_two_copies_of_a_directory_never_both_charge(tmp_path):
    anchor = tmp_path / "elsewhere.json"
    with closing(reopen(tmp_path / "c", anchor=anchor)) as custodian:
        custodian.ledger.charge(0, "screen", ["a"])
    shutil.copytree(tmp_path / "c", tmp_path / "copy")
    with closing(reopen(tmp_path / "copy", anchor=anchor)) as copy:
        assert copy.ledger.charge(0, "screen", ["b"]).granted == ("b",)
    with pytest.raises(LedgerMismatch, match="another copy of it has continued"):
        reopen(tmp_path / "c", anchor=anchor)
    with pytest.raises(LedgerMismatch, match="gone"):
        reopen(tmp_path / "fresh", anchor=anchor)


def test_one_process_at_a_time(directory):
    with closing(reopen(directory)), pytest.raises(InvalidInput, match="one process"):
        reopen(directory)


def test_a_ledger_on_a_server_belongs_to_its_directory(tmp_path, postgres):
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


def test_a_directory_with_a_ledger_gets_no_other_one(directory, tmp_path, postgres):
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
