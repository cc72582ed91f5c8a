"""What is said or refused before a charge: alike rows, unknown columns, scripts without a guard."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from labelwall import pipeline
from labelwall.student.asking.matrix_round import cluster
from labelwall.wall.errors import LISTED, listed
from tests.experiment import tiny
from tests.experiment.checks import check_one_error, named
from tests.programs import environment

pytestmark = pytest.mark.usefixtures("folder")
SCRIPT = """
import numpy as np
import labelwall as lw
from tests.experiment import tiny
(x, y), (u, _), test = tiny.rows(200, 1), tiny.rows(90, 2), tiny.rows(40, 3)
lw.fit(lw.Data((x, y), u, test), run_dir="run", custody="custody", features="raw",
       mechanism={"kind": "private_linear", "steps": 2}, student={"steps": 5, "devices": 2})
"""


@pytest.mark.parametrize("count", [1, 40])
def test_public_rows_that_do_not_differ(count: int, capsys) -> None:
    tiny.write()
    x = np.repeat(tiny.rows(1, 2)[0], count, axis=0)
    tiny.change(public_x=x, public_y=None)
    check_one_error(["plan", "--data", "data.npz"], "`public` must be rows that differ", capsys)


def test_unknown_columns_to_ignore(capsys) -> None:
    rows = named(tiny.write_tables(private=200, public=200, test=200))
    command = ["plan", *rows, "--label", "kind", "--mechanism.kind", "gnmax", "--data.ignore"]
    check_one_error([*command, "[x7x]"], "Found 'x7x'. Did you mean 'x7'?", capsys)
    check_one_error(
        [*command, "[name]"], "`data.ignore` must be columns of the public rows", capsys
    )
    assert pipeline.main([*command, "[x7]"]) == 0


def test_a_script_without_a_guard_is_refused_before_the_charge() -> None:
    Path("script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 1
    assert 'unless a script calls this under `if __name__ == "__main__":`' in done.stderr
    assert not list(Path("custody").glob("ledger*"))


def test_many_classes_are_ten_and_how_many_more() -> None:
    names = [f"c{n}" for n in range(300)]
    assert listed(names[:LISTED]) == ", ".join(names[:LISTED])
    assert listed(names).endswith("c8, c9 and 290 more")


def test_centres_are_of_rows_in_the_pool_s_order(monkeypatch) -> None:
    """As a rehearsal has them: a run's cells are those that were forecast."""
    seen = list[np.ndarray]()

    def kept(features: np.ndarray, cells: int, seed: int) -> np.ndarray:
        seen.append(features)
        return cluster(features, cells, seed)

    monkeypatch.setattr("labelwall.student.asking.matrix_round.cluster", kept)
    x, y = tiny.rows(200, 1)
    (u, _), (t, ty) = tiny.rows(120, 2), tiny.rows(120, 3)
    np.savez("rows.npz", private_x=x, private_y=y, public_x=u, test_x=t, test_y=ty)
    run = ["run", "--data", "rows.npz", "--mechanism.kind", "reverse_knn", "--features", "raw"]
    run += ["--student.steps", "5", "--student.doubtful_folds", "0", "--threads", "1"]
    assert pipeline.main([*run, "--run_dir", "out", "--custodian_dir", "custody"]) == 0
    *rehearsed, asked = seen
    assert any(np.array_equal(rows, asked) for rows in rehearsed)
