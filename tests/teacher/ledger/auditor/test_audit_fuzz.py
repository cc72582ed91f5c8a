"""Thousands of forged ledgers: none passes that an honest writer could not have written, none fails
that one could.

Honest ledgers of every mechanism are changed at random (values, types, keys, order, the plan and
its prices, one or several changes at once), numbered and hashed anew, and audited. Each mutant is
one of

- ``refused``: the auditor names a problem, and an independent reading refuses it as well;
- ``over budget``: an honest ledger of a plan that costs more than its budget; refused;
- ``same belief``: it passes and says what the ledger it was made from says;
- ``another honest ledger``: it passes, and the independent reading finds in it the epsilon, the
  charges and the releases that the auditor reports. No auditor can tell it from one that was
  written so: it takes an expected head.

Anything else is a failure: a mutant that passes and that the independent reading refuses or prices
otherwise, one that is refused though an honest writer could have written it, and a traceback. The
independent reading (``believed``) is the teacher's: ``LedgerState``, the registry's mechanisms,
their ``next_stage`` and their releases; what a mechanism can release is restated in ``drawable``.
"""

from __future__ import annotations

import functools
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from labelwall.teacher.accounting import accountant, curves
from labelwall.teacher.ledger.auditor import auditor
from labelwall.teacher.ledger.auditor import entries as audited_entries
from labelwall.teacher.ledger.auditor import entries as audited_values
from labelwall.teacher.ledger.auditor import mechanisms as audited_plan
from labelwall.teacher.ledger.auditor.auditor import Finding, audit
from labelwall.teacher.ledger.auditor.entries import Problem
from labelwall.teacher.ledger.auditor.history import History
from tests.ledgers import write
from tests.teacher.ledger.auditor.audit_mutations import Stored, mutated, stored
from tests.teacher.ledger.auditor.audit_reading import Belief, believed
from tests.teacher.ledger.auditor.honest_ledgers import MECHANISMS, bases, honest

KEPT: dict[str, dict[str, Any]] = {}  # by function: results by arguments


def said(finding: Finding) -> Belief:
    """What a finding makes its reader believe."""
    names = "epsilon delta budget unsafe adversary analysts pooled charged released"
    return {name: getattr(finding, name) for name in names.split()}


def verdict(mutant: Stored, original: Belief, path: Path) -> str:
    """The class of one mutant; one that begins with FAILURE is a bug of the auditor, or of this."""
    write(path, *mutant)
    finding, truth = audit(path), believed(*mutant)
    finding.render().encode()
    if finding.consistent:
        if truth != said(finding):
            return f"FAILURE passes: {said(finding)} against {truth}"
        return "same belief" if said(finding) == original else "another honest ledger"
    if truth is None:
        return "refused"
    if truth["epsilon"] is None:
        return "over budget"
    if truth["unsafe"]:
        return "unsafe"
    return f"FAILURE refused though honest: {finding.problems}"


def damaged(content: bytes, rng: random.Random) -> bytes:
    """A file with some bits flipped, bytes overwritten, a part missing or a part repeated."""
    changed, what = bytearray(content), rng.randrange(4)
    at = rng.randrange(len(changed))
    if what == 0:
        for _ in range(rng.choice([1, 1, 2, 8])):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    elif what == 1:
        changed[at : at + 4] = rng.randbytes(4)
    elif what == 2:
        del changed[at : at + rng.choice([1, 100, len(changed)])]
    else:
        changed[at:at] = changed[: rng.randrange(1, 5000)]
    return bytes(changed)


@contextmanager
def remembered() -> Iterator[None]:
    """Keep every curve and certificate that is computed: thousands of mutants share a few plans."""
    faster = {
        name: replace(curves.CURVES[name], rdp=kept(curves.CURVES[name].rdp))
        for name in ("gaussian", "argmax", "screening")
    }
    with (
        mock.patch.dict(curves.CURVES, faster),
        mock.patch.object(accountant, "_certificates", kept(accountant._certificates.__wrapped__)),
    ):
        yield


def kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its results cached by the text of its arguments."""
    results = KEPT.setdefault(function.__name__, {})

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        key = repr((arguments, sorted(named.items())))
        if key not in results:
            results[key] = function(*arguments, **named)
        return results[key]

    return call


@remembered()
def fuzz(mutants: int, seed: int, folder: Path, *, until_failure: bool = False) -> Counter[str]:
    """How many mutants are of each class. A traceback is raised."""
    rng, counts = random.Random(seed), Counter[str]()
    path, originals = folder / "mutant.sqlite", bases(rng)
    beliefs = []
    for base in originals:
        write(path, *stored(base))
        finding = audit(path)
        assert finding.problems == [], finding.problems
        beliefs.append(said(finding))
    for _ in range(mutants):
        chosen = rng.randrange(len(originals))
        mutant = mutated(originals[chosen], rng)
        found = verdict(mutant, beliefs[chosen], path)
        if found.startswith("FAILURE"):
            print(found, json.dumps(mutant)[:6000], file=sys.stderr)
            found = " ".join(found.split(":")[0].split()[:2])
        counts[found] += 1
        if until_failure and found.startswith("FAILURE"):
            break
    return counts


def fuzz_bytes(mutants: int, seed: int, folder: Path) -> Counter[str]:
    """The same for damaged files: a traceback is raised, a changed belief is a failure."""
    rng, counts = random.Random(seed), Counter[str]()
    path = folder / "damaged.sqlite"
    write(path, *stored(honest([MECHANISMS[0]], rng)))
    content, belief = path.read_bytes(), said(audit(path))
    for _ in range(mutants):
        path.write_bytes(damaged(content, rng))
        finding = audit(path)
        finding.render().encode()
        same = said(finding) == belief
        failed = finding.consistent and not same
        counts["FAILURE" if failed else "same belief" if finding.consistent else "refused"] += 1
    return counts


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
