"""Ledgers, run folders and custodian's directories of earlier versions keep their meaning.

tests/fixtures/format_1 holds what the version before rooms wrote: the heads of one ledger for
each mechanism on the same tape, and a run of tests/experiment/tiny.py, as SQL and YAML.
tests/fixtures/persons holds the same of the first version whose ledgers are for persons.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import yaml

from labelwall import pipeline
from labelwall.experiment.config.settings import FORMAT
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.mechanisms.base import added
from labelwall.teacher.mechanisms.naive_knn import NaiveKnn
from labelwall.teacher.shards.config import ScaleConfig
from labelwall.wall.messages import Queries
from labelwall.wall.unit import Unit
from tests.experiment import tiny as tiny_run
from tests.ledgers import extractors
from tests.teacher.shards import tiny

FIXTURES = Path(__file__).parent / "fixtures" / "format_1"
PERSONS = Path(__file__).parent / "fixtures" / "persons"
HEADS = json.loads((FIXTURES / "tape_heads.json").read_text())
PERSONS_HEADS = json.loads((PERSONS / "tape_heads.json").read_text())
RUN = ["run", "--config", "config.yaml", "--run_dir", "out", "--quiet"]
PERSONS_EPSILON = 1.0
EPSILON = 3.554  # of the fixture's ledger, as the version that wrote it audited it


def restore(name: str, path: Path, fixtures: Path = FIXTURES) -> Path:
    """A ledger of the fixtures as an SQLite file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as connection:
        connection.executescript((fixtures / f"{name}.sql").read_text())
    return path


def entries(path: Path) -> list[tuple[int, str, str]]:
    with sqlite3.connect(path) as connection:
        return connection.execute("SELECT seq, kind, body FROM entries ORDER BY seq").fetchall()


def killed(folder: Path, fixtures: Path) -> Path:
    """A run folder and custodian's directory of the fixtures, of a run killed in round 1."""
    tiny_run.write(folder)
    (folder / "out").mkdir()
    shutil.copy(fixtures / "config.yaml", folder / "out")
    restore("run_ledger", folder / "out" / "ledger.sqlite", fixtures)
    restore("custodian_ledger", folder / "out.custodian" / "ledger.sqlite", fixtures)
    shutil.copy(fixtures / "dataset.json", folder / "out.custodian")
    return folder


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(killed(tmp_path, FIXTURES))
    return tmp_path


def test_every_mechanism_has_a_fixture() -> None:
    assert set(HEADS) == set(PERSONS_HEADS) == set(tiny.MECHANISMS)


@pytest.mark.parametrize("name", HEADS)
def test_the_same_tape_gives_the_same_ledger(tmp_path: Path, name: str) -> None:
    """The head is a hash over every byte of every entry, here in the form of format 1."""
    assert head_in_format_1(asked_ledger(tmp_path, name, "row")) == HEADS[name]


@pytest.mark.parametrize("name", PERSONS_HEADS)
def test_the_same_tape_gives_the_same_ledger_for_persons(tmp_path: Path, name: str) -> None:
    path = asked_ledger(tmp_path, name, "person")
    assert head_in_format_1(path) == PERSONS_HEADS[name]


def asked_ledger(folder: Path, name: str, unit: Unit) -> Path:
    """The exported ledger of a teacher on a test tape that was asked twice."""
    held = tiny.records(attributes="attributes" in name, unit=unit)
    teacher = tiny.teacher(folder / "store", name, held, ScaleConfig(), unit=unit)
    teacher.use_extractor(tiny.spec_of(name))
    if (matrix := tiny.matrix(tiny.MECHANISMS[name])) is not None:
        teacher.count(matrix)
    else:
        asked = tiny.queries()
        teacher.answer(Queries(asked[:25]))
        teacher.answer(Queries(asked))
    teacher.export(folder / "copy.sqlite")
    return folder / "copy.sqlite"


def head_in_format_1(path: Path) -> str:
    """The last hash of a ledger if its entries held the extractors' fields, as they did."""
    fields, head = dict(extractors(path)), "0" * 64
    for seq, kind, body in entries(path):
        if kind == "extractor":
            sha256 = json.loads(body)["sha256"]
            body = f'{{"fields":{fields[sha256]},"sha256":"{sha256}"}}'
        text = json.dumps([seq, kind, body, head], separators=(",", ":"))
        head = hashlib.sha256(text.encode()).hexdigest()
    return head


def test_an_earlier_ledger_keeps_its_epsilon(tmp_path: Path) -> None:
    finding = audit(restore("run_ledger", tmp_path / "ledger.sqlite"))
    assert finding.consistent
    assert finding.epsilon == EPSILON


def test_an_earlier_run_resumes_and_pays_for_nothing_twice(earlier: Path) -> None:
    before = entries(earlier / "out" / "ledger.sqlite")
    assert pipeline.main(RUN) == 0
    after = entries(earlier / "out" / "ledger.sqlite")
    assert after[: len(before)] == before
    new = [kind for _, kind, _ in after[len(before) :]]
    assert "charge" not in new[: new.index("extractor")] if "extractor" in new else not new


def test_an_earlier_run_for_persons_is_still_for_persons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reverse kNN, whose votes have parts: the ledger is audited, and the run goes on for free."""
    monkeypatch.chdir(killed(tmp_path, PERSONS))
    shutil.copy(PERSONS / "settings.yaml", "config.yaml")
    held = dict(np.load("data.npz"))
    np.savez("data.npz", **held, private_person=np.arange(200) % 40)
    ledger = tmp_path / "out" / "ledger.sqlite"
    finding = audit(ledger)
    assert finding.consistent
    assert (finding.unit, finding.epsilon) == ("person", PERSONS_EPSILON)
    before = entries(ledger)
    assert pipeline.main([*RUN, "--privacy.unit", "row"]) == 2
    assert "privacy" in capsys.readouterr().err
    assert entries(ledger) == before
    assert pipeline.main(RUN) == 0
    after = entries(ledger)
    assert after[: len(before)] == before
    assert "charge" not in [kind for _, kind, _ in after[len(before) :]]


def test_a_setting_that_an_earlier_version_did_not_have_is_at_its_default(earlier: Path) -> None:
    path = earlier / "out" / "config.yaml"
    recorded = yaml.safe_load(path.read_text())
    del recorded["device"], recorded["scale"], recorded["choice"]
    path.write_text(yaml.safe_dump(recorded))
    assert pipeline.main(RUN) == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [({"choice": "random"}, "choice"), ({"format": FORMAT + 1}, "`format` must be")],
)
def test_another_setting_or_a_newer_format_is_refused(
    earlier: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], text: str
) -> None:
    path = earlier / "out" / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change))
    before = entries(earlier / "out" / "ledger.sqlite")
    assert pipeline.main(RUN) == 2
    assert text in capsys.readouterr().err
    assert entries(earlier / "out.custodian" / "ledger.sqlite") == before


@dataclass(frozen=True)
class LaterKnn(NaiveKnn):
    """Naive kNN with a field that a later version added."""

    smoothing: float = added(0.0)


def test_an_added_field_changes_no_ledger_that_was_begun_before() -> None:
    assert LaterKnn().fields() == NaiveKnn().fields()
    assert LaterKnn(smoothing=0.5).fields() == {**NaiveKnn().fields(), "smoothing": 0.5}
    assert LaterKnn(**NaiveKnn().fields()) == LaterKnn()
