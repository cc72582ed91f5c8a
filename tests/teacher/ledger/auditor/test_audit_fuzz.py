"""Thousands of forged ledgers.

None passes that an honest writer could not have written, none fails that one could.

`python -m tests.teacher.ledger.auditor.audit_fuzz 100000 1` is the long form.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labelwall.teacher.ledger.auditor import auditor
from labelwall.teacher.ledger.auditor import entries as audited_entries
from labelwall.teacher.ledger.auditor import plan as audited_plan
from labelwall.teacher.ledger.auditor import values as audited_values
from labelwall.teacher.ledger.auditor.history import History
from labelwall.teacher.ledger.auditor.values import Problem
from tests.teacher.ledger.auditor.audit_fuzz import fuzz, fuzz_bytes


def nothing(*arguments: object) -> None:
    """A check that was left out."""


def lenient(text: str) -> Any:
    """JSON as Python reads it: NaN, the last of repeated keys, any spelling."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Problem("is not JSON") from error


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "prices": lambda patch: patch.setattr(audited_plan, "_check_release", nothing),
    "form": lambda patch: patch.setattr(audited_entries, "parse", lenient),
    "stages": lambda patch: patch.setattr(History, "_require_due", nothing),
    "results": lambda patch: patch.setattr(History, "_check", nothing),
    "extractors": lambda patch: patch.setattr(auditor, "check_extractor", nothing),
    "adversaries": lambda patch: patch.setitem(
        audited_entries.SCHEMAS["genesis"], "adversary", audited_values.NAME
    ),
    "registers": lambda patch: patch.setattr(auditor, "_check_adversary", nothing),
}


@pytest.mark.parametrize("mutants", [1000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_no_forged_ledger_passes_for_another_than_it_is(tmp_path: Path, mutants: int) -> None:
    counts = fuzz(mutants, 1, tmp_path)
    assert not [name for name in counts if name.startswith("FAILURE")]
    assert sum(counts.values()) == mutants
    assert counts["refused"] > mutants / 2
    assert min(counts["same belief"], counts["another honest ledger"]) > mutants / 100


def test_no_damaged_file_passes_or_is_a_traceback(tmp_path: Path) -> None:
    counts = fuzz_bytes(200, 1, tmp_path)
    assert counts["FAILURE"] == 0
    assert counts["refused"] > 50


@pytest.mark.parametrize("name", FAULTS)
def test_an_auditor_that_leaves_a_check_out_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    FAULTS[name](monkeypatch)
    counts = fuzz(1000, 2, tmp_path, until_failure=True)
    assert any(found.startswith("FAILURE") for found in counts), counts
