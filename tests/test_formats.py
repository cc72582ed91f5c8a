"""One number of the format: another one is refused by one line, in every file that has it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from labelwall import pipeline
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.wall.errors import LedgerMismatch
from labelwall.wall.files import FORMAT
from tests import ledgers
from tests.experiment import tiny
from tests.postgres import rows

RUN = ["run", "--config", "config.yaml", "--run_dir", "out", "--quiet", "--anchor", "own.anchor"]
CUSTODIAN = "data.npz.custodian/dataset.json"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("formats")
    tiny.write(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert pipeline.main(RUN) == 0
    return folder


def in_json(path: Path, number: int) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": number}))


def in_yaml(path: Path, number: int) -> None:
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"format": number}))


def in_table(path: Path, number: int) -> None:
    rows(path, "UPDATE anchor SET format = :format", format=number)


FILES: dict[str, tuple[Callable[[Path, int], None], str]] = {
    "config.yaml": (in_yaml, "the configuration"),
    "out/config.yaml": (in_yaml, "the configuration"),
    CUSTODIAN: (in_json, "the custodian's dataset.json"),
    "own.anchor": (in_table, "the anchor own.anchor"),
}


@pytest.mark.parametrize("name", FILES)
def test_another_format_is_refused_in_one_line(finished, monkeypatch, capsys, name) -> None:
    monkeypatch.chdir(finished)
    path, (change, words) = finished / name, FILES[name]
    before = path.read_bytes()
    try:
        change(path, FORMAT + 1)
        assert pipeline.main(RUN) == 2
    finally:
        path.write_bytes(before)
    errors = capsys.readouterr().err.strip().splitlines()
    assert f"`format` of {words} must be {FORMAT}. Found {FORMAT + 1}." in errors[-1]
    assert pipeline.main(RUN) == 0


def test_a_file_that_names_no_format_is_refused_unless_a_person_wrote_it(
    finished, monkeypatch
) -> None:
    monkeypatch.chdir(finished)
    assert "format" not in yaml.safe_load(Path("config.yaml").read_text())
    path = finished / CUSTODIAN
    before = path.read_text()
    path.write_text(before.replace('"format"', '"form"'))
    assert pipeline.main(RUN) == 2
    path.write_text(before)


def test_a_ledger_of_another_format_is_refused_and_not_certified(
    finished, tmp_path, capsys
) -> None:
    path = tmp_path / "ledger.sqlite"
    shutil.copy(finished / "out" / "ledger.sqlite", path)
    (kind, text), *rest = ledgers.entries(path)
    ledgers.write(path, [(kind, text.replace(f'"format":{FORMAT}', '"format":7')), *rest])
    line = f"`format` of the ledger must be {FORMAT}. Found 7. Another labelwall wrote it."
    with pytest.raises(LedgerMismatch, match=line):
        Ledger(path)
    assert pipeline.main(["audit", str(path)]) == 3
    assert line in capsys.readouterr().out
