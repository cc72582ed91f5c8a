"""Ledgers, run folders and custodian's directories of earlier versions keep their meaning.

tests/fixtures/format_1 holds what the version before rooms wrote: the heads of one ledger for
each mechanism on the same tape, and a run of tests/experiment/tiny.py, as SQL and YAML.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from labelwall import pipeline
from labelwall.experiment.config.settings import FORMAT
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.mechanisms.base import added
from labelwall.teacher.mechanisms.naive_knn.mechanism import NaiveKnn
from labelwall.teacher.shards.config import ScaleConfig
from labelwall.wall.messages import Queries
from tests.experiment import tiny as tiny_run
from tests.ledgers import extractors
from tests.teacher.shards import tiny

FIXTURES = Path(__file__).parent / "fixtures" / "format_1"
HEADS = json.loads((FIXTURES / "tape_heads.json").read_text())
RUN = ["run", "--config", "config.yaml", "--run_dir", "out", "--quiet"]
EPSILON = 3.554  # of the fixture's ledger, as the version that wrote it audited it


def restore(name: str, path: Path) -> Path:
    """A ledger of the fixtures as an SQLite file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as connection:
        connection.executescript((FIXTURES / f"{name}.sql").read_text())
    return path


def entries(path: Path) -> list[tuple[int, str, str]]:
    with sqlite3.connect(path) as connection:
        return connection.execute("SELECT seq, kind, body FROM entries ORDER BY seq").fetchall()


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An earlier version's run folder and custodian's directory, of a run killed in round 1."""
    tiny_run.write(tmp_path)
    (tmp_path / "out").mkdir()
    shutil.copy(FIXTURES / "config.yaml", tmp_path / "out")
    restore("run_ledger", tmp_path / "out" / "ledger.sqlite")
    restore("custodian_ledger", tmp_path / "out.custodian" / "ledger.sqlite")
    shutil.copy(FIXTURES / "dataset.json", tmp_path / "out.custodian")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_mechanism_has_a_fixture() -> None:
    assert set(HEADS) == set(tiny.MECHANISMS)


@pytest.mark.parametrize("name", HEADS)
def test_the_same_tape_gives_the_same_ledger(tmp_path: Path, name: str) -> None:
    """The head is a hash over every byte of every entry, here in the form of format 1."""
    held = tiny.records(attributes="attributes" in name)
    teacher = tiny.teacher(tmp_path / "store", name, held, ScaleConfig())
    teacher.use_extractor(tiny.spec_of(name))
    if (matrix := tiny.matrix(tiny.MECHANISMS[name])) is not None:
        teacher.count(matrix)
    else:
        asked = tiny.queries()
        teacher.answer(Queries(asked[:25]))
        teacher.answer(Queries(asked))
    teacher.export(tmp_path / "copy.sqlite")
    assert head_in_format_1(tmp_path / "copy.sqlite") == HEADS[name]


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
