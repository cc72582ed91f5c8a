"""A run by a teacher elsewhere: no private file is opened in the student's process."""

import json
import re
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelwall import pipeline
from labelwall.experiment.run.teachers import KEY
from labelwall.experiment.whole_run import run
from labelwall.teacher.custody.child import child
from labelwall.teacher.custody.groups import CapsConfig
from labelwall.teacher.custody.opening import custody
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.service.keys import Keys
from labelwall.wall.console import Console
from labelwall.wall.errors import InvalidInput, LabelwallError, LedgerMismatch
from tests import ledgers
from tests.experiment import tiny
from tests.experiment.checks import QUICK, stored
from tests.experiment.shard_services import in_one_piece, placed_config, token
from tests.programs import PROGRAMS, environment
from tests.seeded_noise import SeededNoise

ANALYST = PROGRAMS / "analyst_run.py"
# Runs a command, and tells which modules of the teacher the process has loaded then
LOADED = """
import json, sys
from labelwall import pipeline
status = pipeline.main(sys.argv[1:])
loaded = [name.removeprefix("labelwall.teacher.") for name in sys.modules]
print(json.dumps([status, [name for name in loaded if f"labelwall.teacher.{name}" in sys.modules]]))
"""
# What says how releases are priced and asked for, and what a ledger recorded
DECLARING = re.compile(
    r"(accounting|mechanisms|ledger\.auditor)(\.\w+)?|ledger(\.(state|url))?|shards(\.scale_config)?|"
    r"custody(\.(groups|recorded|schedule|private_settings|solver))?"
)
DRAWING = {"mechanisms.voters", "mechanisms.gradient"}


def public_part(custodian: Path, analyst: Path) -> None:
    """The analyst's own root: the public arrays, and the same configuration."""
    shutil.copytree(custodian, analyst)
    arrays = stored(str(analyst / "data.npz"))
    public = {name: array for name, array in arrays.items() if not name.startswith("private")}
    np.savez(analyst / "data.npz", **public)


def entries(path: Path) -> list[tuple[str, dict]]:
    return ledgers.parsed(path)[1:]


def screened(ledger: Path) -> list[int]:
    charges = [body for kind, body in entries(ledger) if kind == "charge"]
    return [body["count"] for body in charges if body["release"] == "screen"]


@pytest.mark.slow
def test_two_rounds_with_the_teacher_in_another_process(tmp_path):
    """Here; by a service in another process and root, on the same tape; and with `--isolate`. The
    audit hook sees none of the custodian's paths, and does see others."""
    custodian, analyst, whole = tmp_path / "custodian", tmp_path / "analyst", tmp_path / "whole"
    tiny.write(custodian)
    tiny.write(whole)
    public_part(custodian, analyst)
    config, store = placed_config(custodian), custodian / "store"
    run(config, custodian / "local", entropy=SeededNoise(1), console=Console(quiet=True))
    started = environment(**{KEY: token(store)})
    with in_one_piece(custodian, store) as url:
        places = analyst, whole, custodian, whole / "isolated.custodian"
        command = [sys.executable, ANALYST, url, *places]
        done = subprocess.run(command, env=started, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["status"], report["seen"]) == (0, [])
    assert report["opened"] > 100
    assert entries(custodian / "local/ledger.sqlite") == entries(analyst / "remote/ledger.sqlite")
    for number in (1, 2):
        places = custodian / "local", analyst / "remote"
        here, there = (stored(f"{place}/round_{number}/answers.npz") for place in places)
        assert all(np.array_equal(here[name], there[name]) for name in here)
    private = np.load(custodian / "data.npz")["private_x"]
    written = b"".join(path.read_bytes() for path in analyst.rglob("*") if path.is_file())
    assert not [row for row in private if row.tobytes() in written]
    assert screened(whole / "isolated/ledger.sqlite") == screened(custodian / "local/ledger.sqlite")
    assert pipeline.main(["audit", str(whole / "isolated/ledger.sqlite")]) == 0
    assert (whole / "isolated/summary.json").exists()


@pytest.mark.parametrize("by_file", [True, False])
def test_an_analysts_process_can_open_draw_and_write_nothing_private(tmp_path, by_file):
    """It has no module that opens records, draws noise or writes a ledger: with the plan in its
    configuration, and with the service's.
    """
    custodian, analyst, store = (tmp_path / name for name in ("custodian", "analyst", "store"))
    tiny.write(custodian, mechanism={"kind": "private_linear"}, caps=None, rounds=[{}])
    public_part(custodian, analyst)
    serve = ["serve", "--config", "config.yaml", "--custodian_dir", str(store)]
    python = [sys.executable, "-m", "labelwall.pipeline"]
    key, pipe = token(store), subprocess.PIPE
    service = subprocess.Popen(
        [*python, *serve, "--service.port", "0"],
        cwd=custodian,
        env=environment(),
        stdout=pipe,
        stderr=pipe,
        text=True,
    )
    try:
        url = service.stdout.readline().strip()
        asked = ["run", "--config", "config.yaml", "--run_dir", "out", "--teacher", url, "--quiet"]
        asked += [*QUICK, *([] if by_file else ["--mechanism.kind", "auto"])]
        ask = [sys.executable, "-c", LOADED, *asked]
        started = environment(**{KEY: key})
        done = subprocess.run(ask, cwd=analyst, env=started, capture_output=True, text=True)
    finally:
        service.terminate()
        _, said = service.communicate()
    assert "a browser that opens this URL shows the custodian's page" in said
    assert done.returncode == 0, done.stderr
    status, loaded = json.loads(done.stdout.splitlines()[-1])
    assert status == 0
    assert "accounting.accountant" in loaded  # what is looked for is there to be found
    found = {name for name in loaded if not DECLARING.fullmatch(name)} | DRAWING & {*loaded}
    assert not found


def test_another_plan_or_no_key_is_refused(tmp_path, monkeypatch):
    tiny.write(tmp_path)
    store = tmp_path / "store"
    with in_one_piece(tmp_path, store) as url:
        asked = replace(placed_config(tmp_path), teacher=url)
        how = {"console": Console(quiet=True), "entropy": SeededNoise(1)}
        with pytest.raises(InvalidInput, match=KEY):
            run(asked, tmp_path / "a", **how)
        monkeypatch.setenv(KEY, token(store))
        other = replace(asked, rounds=asked.rounds[:1], caps=CapsConfig())
        with pytest.raises(LedgerMismatch, match="another budget"):
            run(other, tmp_path / "b", **how)
        with pytest.raises(InvalidInput, match="isolate"):
            run(asked, tmp_path / "c", **how, isolate=True)


def test_a_key_for_fewer_queries_than_the_plan_has_sums_is_refused_at_no_charge(
    tmp_path, monkeypatch
):
    tiny.write(tmp_path, mechanism={"kind": "private_linear"}, caps=None, rounds=[{}])
    store = tmp_path / "store"
    with in_one_piece(tmp_path, store) as url:
        monkeypatch.setenv(KEY, Keys(store).add("few", "analyst", 5))
        asked = replace(placed_config(tmp_path), teacher=url)
        with pytest.raises(InvalidInput, match=r"at least 30 queries.*Found 'one of few for 5'"):
            run(asked, tmp_path / "a", console=Console(quiet=True), entropy=SeededNoise(1))
        assert not sum(Ledger(store / "ledger.sqlite").state.spent.values())


def test_a_child_that_can_not_start_says_why_in_one_line(tmp_path):
    tiny.write(tmp_path)
    side = replace(placed_config(tmp_path).private_side(), custodian_dir=str(tmp_path / "store"))
    with (
        closing(custody(side, unsafe=False)),
        pytest.raises(LabelwallError, match="one process at a time"),
        child(side, print),
    ):
        pass
