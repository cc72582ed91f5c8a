"""The notebook of the documentation runs from its first cell to its last."""

import contextlib
import io
import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "first_steps.ipynb"


def cells() -> list[dict]:
    return [c for c in json.loads(NOTEBOOK.read_text())["cells"] if c["cell_type"] == "code"]


def test_it_was_executed_and_shows_what_came_out() -> None:
    shown = [cell for cell in cells() if cell["outputs"]]
    assert len(shown) >= 6
    assert not [o for cell in shown for o in cell["outputs"] if o["output_type"] == "error"]


@pytest.mark.slow
def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        for cell in cells():
            exec("".join(cell["source"]), names)
    assert names["model"].score(names["rows"], names["test"]["digit"]) > 0.8
    assert names["finding"].epsilon <= 2.0
    assert "was begun with" in out.getvalue() or "another" in out.getvalue()
