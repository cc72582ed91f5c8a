"""Extractors are stored once beside the entries; a missing or changed one is refused."""

import json

import pytest

from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.wall.errors import LedgerMismatch
from labelwall.wall.messages import ExtractorSpec, canonical_json
from tests.ledgers import created, identity
from tests.postgres import rows

ONE, TWO = (ExtractorSpec("raw", (400,), 4, center=(0.125,) * 400, scale=s) for s in (1.0, 2.0))


@pytest.fixture
def ledger(place):
    """Each of two extractors paid for one query, by turns."""
    made = created(place, 8)
    for number, spec in enumerate((ONE, TWO, ONE, TWO)):
        answer(made, spec, f"{number}")
    return made


def answer(ledger, spec, name):
    ledger.use_extractor(spec.public_fields())
    key = identity(name)
    ledger.record(ledger.charge(0, "screen", [key]), {key: 1})


def named(place):
    found = rows(place, "SELECT body FROM entries WHERE kind = 'extractor' ORDER BY seq")
    return [body for (body,) in found]


def test_two_extractors_by_turns_are_stored_once(ledger, place):
    """An entry is 77 bytes, whatever it names; what a caller let the ledger grow counts both."""
    before = ledger.written
    assert [json.loads(body) for body in named(place)] == [
        {"sha256": spec.sha256()} for spec in (ONE, TWO, ONE, TWO)
    ]
    kept = sorted((s.sha256(), canonical_json(s.public_fields()).decode()) for s in (ONE, TWO))
    assert rows(place, "SELECT sha256, fields FROM extractors ORDER BY sha256") == kept
    ledger.use_extractor(ONE.public_fields())
    assert ledger.written == before  # until a query is due to it
    answer(ledger, ONE, "a")
    first = ledger.written - before
    answer(ledger, ONE, "b")  # the last one: it is not named again
    assert ledger.written - before - first == first - 77


def test_a_charge_names_its_own_extractor_whatever_another_process_named(place, tmp_path):
    first = created(place)
    both = [(first, ONE), (Ledger(place), TWO)]
    for ledger, spec in both:
        ledger.use_extractor(spec.public_fields())
    for number, (ledger, _) in enumerate([*both, *both]):
        key = identity(f"{number}")
        ledger.record(ledger.charge(0, "screen", [key]), {key: 1})
    assert named(place) == [f'{{"sha256":"{spec.sha256()}"}}' for spec in (ONE, TWO, ONE, TWO)]
    first.export(tmp_path / "export.sqlite")
    finding = audit(tmp_path / "export.sqlite")
    assert (finding.problems, finding.charged["0/screen"]) == ([], 4)


DAMAGE = {
    "missing": "DELETE FROM extractors WHERE sha256 = :sha256",
    "changed": "UPDATE extractors SET fields = replace(fields, '0.125', '0.25')",
    "no table": "DROP TABLE extractors",
    "by turns": "UPDATE extractors SET fields = 'x' WHERE sha256 <> :sha256",
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_missing_or_changed_extractor_is_refused(ledger, place, tmp_path, name):
    """When the ledger is opened, when an open one names it again, and by the auditor."""
    values = {"sha256": ONE.sha256()} if ":sha256" in DAMAGE[name] else {}
    rows(place, DAMAGE[name], **values)
    before = len(rows(place, "SELECT seq FROM entries"))
    gone = name == "no table"
    for work in (lambda: Ledger(place), lambda: use_both(ledger)):
        with pytest.raises(LedgerMismatch, match="not readable" if gone else "extractor"):
            work()
    assert len(rows(place, "SELECT seq FROM entries")) <= before + 3
    if gone:
        return
    ledger.export(tmp_path / "export.sqlite")
    finding = audit(tmp_path / "export.sqlite")
    assert not finding.consistent
    assert finding.epsilon is None


def use_both(ledger):
    for spec in (ONE, TWO):
        answer(ledger, spec, spec.sha256())


def test_a_stray_row_is_refused_where_its_extractor_comes(ledger, place):
    """It can not take the place of what an entry will name; not even with the right content."""
    third = ExtractorSpec("raw", (4,), 4)
    for fields in ("{}", canonical_json(third.public_fields()).decode()):
        rows(place, "DELETE FROM extractors WHERE sha256 = :s", s=third.sha256())
        rows(place, "INSERT INTO extractors VALUES (:s, :f)", s=third.sha256(), f=fields)
        with pytest.raises(LedgerMismatch):
            answer(ledger, third, "c")
    rows(place, "DELETE FROM extractors WHERE sha256 = :s", s=third.sha256())
    answer(ledger, third, "c")
