"""The auditor finds every change of a ledger, even with recomputed hashes, and nothing else."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.conversion import round_up
from labelwall.teacher.ledger.auditor import auditor, mechanisms, reading
from labelwall.teacher.ledger.auditor.auditor import AuditedHistory, audit
from labelwall.teacher.ledger.auditor.reading import canonical
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.wall.errors import LedgerMismatch, MissingData
from labelwall.wall.guarantee import EACH, POOLED, single_analyst
from tests.ledgers import Entry, entries, identities
from tests.ledgers import write as rechain
from tests.make import ledger_in, plan_of
from tests.postgres import rows
from tests.teacher.shards import tiny

A, B, C, D, Y, Z = identities(*"abcdyz")
OTHER = "extractor", f'{{"sha256":"{"e" * 64}"}}'


def hashes(path):
    return [digest for (digest,) in rows(path, "SELECT hash FROM entries ORDER BY seq")]


def test_an_honest_ledger_is_consistent_and_priced_like_its_plan(path):
    found = audit(path)
    assert found.problems == []
    assert (found.charged, found.released) == (
        {"0/screen": 5, "0/aggregate": 3},
        {"0/screen": 5, "0/aggregate": 3},
    )
    assert 0 < found.epsilon <= 1.0
    assert found.epsilon == min(found.certificates.values())
    assert audit(path, expect_head=hashes(path)[4]).consistent
    assert found.explanation == []
    explained = audit(path, explained=True)
    assert explained.render().endswith("\n".join(explained.explanation))
    assert explained.explanation[-2].startswith("the smallest of all certificates counts: tight")


def test_a_ledger_without_a_charge_says_so(tmp_path):
    plan = plan_of(tiny.MECHANISMS["private_knn"], 5)
    ledger_in(tmp_path, plan, unsafe=False)
    assert "nothing was charged yet" in audit(tmp_path / "ledger.sqlite").render()


@pytest.mark.parametrize("name", tiny.MECHANISMS)
def test_what_a_teacher_of_any_mechanism_writes_is_consistent(tmp_path, name):
    path, teacher = tmp_path / "export.sqlite", tiny.ready(tmp_path, name, tiny.records_of(name))
    tiny.asked(teacher, name)
    teacher._ledger.export(path)
    assert audit(path).problems == ["noise came from a test tape (unsafe): epsilon is infinite"]
    assert sum(audit(path).released.values()) > 0


def changed(position, old, new):
    """One entry with one text in place of another, once."""

    def forge(before):
        kind, body = before[position]
        assert old in body
        return [*before[:position], (kind, body.replace(old, new, 1)), *before[position + 1 :]]

    return forge


def edited(position, old, new):
    """The same by a forger who writes the one form of an entry."""

    def forge(before):
        after = changed(position, old, new)(before)
        kind, body = after[position]
        return [*after[:position], (kind, canonical(json.loads(body))), *after[position + 1 :]]

    return forge


def added(kind, body):
    return lambda before: [*before, (kind, body)]


ANN = '{"dataset":"e","name":"ann"}'
FIRST = f'"{min(A, B, C)}":1'  # of the first screening's results
WON = f'"{min(A, B, C)}":7'  # of the first winners
REFUSED = f'{{"identities":["{Y}"],"release":"screen","slot":0}}'
FORGERIES: dict[str, tuple[str, Callable[[list[Entry]], list[Entry]]]] = {
    "cap exceeded": ("past the cap", added("charge", '{"count":1,"release":"screen","slot":0}')),
    "released before charged": ("unused charge", lambda e: [*e[:2], e[3], e[2], *e[4:]]),
    "released without a charge": (
        "unused charge",
        added("release", f'{{"charge":99,"results":{{"{Z}":1}}}}'),
    ),
    "one charge, two releases": (
        "unused charge",
        added("release", f'{{"charge":2,"results":{{"{Z}":1}}}}'),
    ),
    "more released than charged": ("paid for", edited(3, FIRST, f'{FIRST},"{"f" * 64}":1')),
    "refused with cap left": (
        "not reached",
        lambda e: [*e[:2], ("refusal", REFUSED), *e[2:]],
    ),
    "unknown kind": ("unknown kind", added("gift", "{}")),
    "unknown field": ("time': Extra", edited(1, '"sha256"', '"time":1,"sha256"')),
    "unknown curve": ("prices", changed(0, '"curve":"argmax"', '"curve":"free"')),
    "plan over budget": ("budget", changed(0, '"epsilon":1.0', '"epsilon":0.001')),
    "another format": ("`format` of the ledger must be 1", changed(0, '"format":1', '"format":2')),
    "unsafe": ("unsafe", changed(0, '"unsafe":false', '"unsafe":true')),
    "votes released under an argmax's price": (
        "a class",
        changed(5, WON, WON.replace(":7", ":[1,2]")),
    ),
    "something else released": ("0 or 1", changed(3, FIRST, FIRST.replace(":1", ':"1"'))),
    "negative count": (
        "greater than or equal to 1",
        added("charge", '{"count":-3,"release":"screen","slot":0}'),
    ),
    "two genesis": ("second first entry", lambda e: [e[0], *e]),
    "a later genesis": ("second first entry", lambda e: [*e, e[0]]),
    "not json": ("JSON", added("charge", "count")),
    "count: NaN": ("finite", changed(2, '"count":3', '"count":NaN')),
    "count: infinity": ("JSON", changed(2, '"count":3', '"count":1e999')),
    "count: true": ("True", changed(6, '"count":2', '"count":true')),
    "count: 3.0": ("3.0", changed(2, '"count":3', '"count":3.0')),
    "a repeated key": ("one form", changed(2, '"count":3', '"count":3,"count":3')),
    "a repeated key within": ("one form", changed(0, '"cap":5', '"cap":5,"cap":900')),
    "another form": ("one form", changed(2, ",", ", ")),
    "an unknown mechanism": ("unknown kind", changed(0, '"kind":"private_knn"', '"kind":"magic"')),
    "a screening bit of 123456789": ("0 or 1", changed(3, FIRST, FIRST + "23456789")),
    "a screening bit of true": ("0 or 1", changed(3, FIRST, FIRST.replace(":1", ":true"))),
    "a label of 10^30": ("a class", changed(5, WON, WON.replace(":7", f":{10**30}"))),
    "a label of -1": ("a class", changed(5, WON, WON.replace(":7", ":-1"))),
    "a query without a hash": ("[0-9a-f]{64}", edited(3, FIRST, '"a":1')),
    "a winner although the screening said no": (
        "did not pass",
        changed(3, FIRST, FIRST.replace(":1", ":0")),
    ),
    "a winner without a screening": ("did not pass", edited(5, min(A, B, C), "f" * 64)),
    "a charge before an extractor": ("extractor", lambda e: [e[0], *e[2:]]),
    "an extractor of another hash": ("not in the file", lambda e: [e[0], OTHER, *e[2:]]),
    "an extractor twice": ("in use already", lambda e: [*e[:2], *e[1:]]),
    "delta: 0": ("greater than 0", changed(0, '"delta":1e-05', '"delta":0')),
    "delta: 1.0": ("less than 1", changed(0, '"delta":1e-05', '"delta":1.0')),
    "a cap of true": ("valid integer", changed(0, '"cap":5', '"cap":true')),
    "a sigma of 0": ("sigma_vote", changed(0, '"sigma_vote":25.0', '"sigma_vote":0')),
    "a sampling probability of true": (
        "sample_rate",
        changed(0, '"sample_rate":0.15', '"sample_rate":true'),
    ),
    "batch: 1": ("batch", changed(0, '"batch":false', '"batch":1')),
    "an adversary that is not named": ("adversary", edited(0, '"adversary":"', '"adversary":"x')),
    "an adversary left out": ("required", changed(0, f'"adversary":{canonical(POOLED)},', "")),
    "an adversary softened": ("adversary", edited(0, canonical(POOLED), '"analyst ann alone"')),
    "an adversary of one line more": (
        "adversary", edited(0, canonical(POOLED), canonical(single_analyst("ann") + "\n"))),
    "an adversary of null": ("adversary", edited(0, canonical(POOLED), "null")),
    "a cheaper price": ("prices", edited(0, '"sigma":30.0', '"sigma":90.0')),
    "a query answered twice": ("same query twice", edited(7, D, A)),
    "a refused query answered": (
        "was refused",
        lambda e: [*e[:5], ("refusal", REFUSED.replace(Y, A).replace("screen", "aggregate")), e[5]],
    ),
    "a register with charges": ("register", edited(0, canonical(POOLED), canonical(EACH))),
    "an analyst in a budget": ("register", added("analyst", ANN)),
    "an analyst twice": ("names an analyst", lambda e: [e[0], *[("analyst", ANN)] * 2]),
    "nothing": ("no first entry", lambda e: []),
}  # fmt: skip
# What a teacher does not ask as it opens a file, but of its mechanisms, or before a charge.
OPENED = (
    "unknown curve", "plan over budget", "unsafe", "an unknown mechanism", "a query without a hash",
    "a winner although the screening said no", "a winner without a screening", "a sigma of 0",
    "a sampling probability of true", "a cheaper price", "nothing",
)  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_with_fresh_hashes_is_found_and_no_teacher_goes_on_with_it(path, name):
    before, (problem, forge) = entries(path), FORGERIES[name]
    rechain(path, before)
    assert audit(path).consistent  # the forger's hashes are good
    rechain(path, forge(before))
    found = audit(path)
    assert any(problem in line for line in found.problems), found.problems
    assert found.epsilon is found.pooled is None
    assert found.certificates == {}
    assert all(line.isprintable() and len(line) < 500 for line in found.problems)
    if name not in OPENED:
        with pytest.raises(LedgerMismatch):
            Ledger(path)


def nothing(*arguments):
    """A check that was left out."""
    return {}


def lenient(text):
    """JSON as Python reads it: NaN, the last of repeated keys, any spelling."""
    return json.loads(text)


ANY_ADVERSARY = reading.schema("genesis", {**reading.GENESIS, "adversary": reading.NAME})
# Checks that are left out, each with a forgery that then passes.
FAULTS: dict[str, tuple[str, object, str, object]] = {
    "prices": ("a cheaper price", mechanisms, "_check_release", nothing),
    "form": ("a repeated key", reading, "parse", lenient),
    "stages": ("a winner without a screening", AuditedHistory, "_asked_for", nothing),
    "results": ("votes released under an argmax's price", AuditedHistory, "_check", nothing),
    "extractors": ("an extractor's fields", auditor, "check_extractor", nothing),
    "adversaries": ("an adversary that is not named", reading, "SCHEMAS", {
        **reading.SCHEMAS, "genesis": ANY_ADVERSARY}),
    "registers": ("a register with charges", auditor, "_check_adversary", nothing),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_an_auditor_that_leaves_a_check_out_passes_a_forgery(path, monkeypatch, name):
    forgery, owner, check, fault = FAULTS[name]
    if name == "extractors":
        rows(path, "UPDATE extractors SET fields = '{}'")
    else:
        rechain(path, FORGERIES[forgery][1](entries(path)))
    assert not audit(path).consistent
    monkeypatch.setattr(owner, check, fault)
    assert audit(path).consistent


NASTY: list[Any] = [
    None, True, 0, 1, -1, 2, 7, 1.0, 1.5, 1e300, 2**63, -(10**30), "", "1", "screen", "a\nb", [],
    [1], {}, {"a": 1}, "f" * 64, POOLED, EACH, 9, 0.5,
]  # fmt: skip


def places(value):
    """The containers in a JSON value, each with each of its keys."""
    keys = [*value] if type(value) is dict else range(len(value)) if type(value) is list else ()
    for key in keys:
        yield value, key
        yield from places(value[key])


def change(bodies, rng):
    """Another value at some place, or an entry that is removed, repeated or moved."""
    at, to = rng.randrange(len(bodies)), rng.randrange(len(bodies))
    what = rng.randrange(8)
    if what == 0:
        bodies.insert(to, bodies.pop(at))
    elif what == 1:
        bodies.insert(to, json.loads(json.dumps(bodies[at])))
    elif what == 2:
        del bodies[at]
    else:
        container, key = rng.choice([*places(bodies[at])])
        container[key] = rng.choice(NASTY)


def test_what_passes_at_random_is_what_the_teacher_reads(path):
    """What the auditor certifies the ledger continues with the same price and charges."""
    rng, before, passed = random.Random(1), entries(path), 0
    for _ in range(400):
        bodies = [[kind, json.loads(body)] for kind, body in before]
        for _ in range(rng.choice([1, 1, 2])):
            change(bodies, rng)
        rechain(path, [(str(kind), canonical(body)) for kind, body in bodies])
        found = audit(path)
        found.render().encode()
        if found.consistent:
            passed, state = passed + 1, Ledger(path).state
            assert found.epsilon == round_up(certified_epsilon(state.plan)) <= state.plan.epsilon
            assert (found.adversary, found.unsafe) == (state.adversary, state.unsafe)
            assert found.charged == {f"{slot}/{name}": n for (slot, name), n in state.spent.items()}
    assert 10 < passed < 200


def test_many_problems_are_counted(path):
    rechain(path, [*entries(path), *[("gift", "{}")] * 50])
    found = audit(path).problems
    assert len(found) == 21
    assert found[-1] == "and 30 problems more"


def test_an_older_copy_or_a_forged_history_misses_the_expected_head(path):
    """Nothing in the file itself betrays a shorter history, or another adversary."""
    head, before = hashes(path)[-1], entries(path)
    alone = edited(0, canonical(POOLED), canonical(single_analyst("ann")))
    for forged in (before[:-1], alone(before)):
        rechain(path, forged)
        assert audit(path).consistent
        assert not audit(path, expect_head=head).consistent


def test_a_missing_file_is_one_clear_line(tmp_path):
    with pytest.raises(MissingData, match="no ledger"):
        audit(tmp_path / "nowhere.sqlite")


PARTS = ("auditor", "mechanisms", "reading", "released_values")


def test_the_auditor_needs_nothing_of_the_teacher_but_the_curves(path):
    code = (
        "import sys; from pathlib import Path;"
        "from labelwall.teacher.ledger.auditor.auditor import audit;"
        f"assert audit(Path({str(path)!r})).consistent;"
        "print(sorted(name for name in sys.modules if name.startswith('labelwall.teacher.')"
        " or name in ('torch', 'opendp', 'sqlalchemy')))"
    )
    root = Path(__file__).parents[4]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.replace("'", '"'))
    room = "labelwall.teacher.ledger"
    known = ["", *(f".{part}" for part in PARTS)]
    assert [name for name in loaded if not name.startswith("labelwall.teacher.accounting")] == [
        room,
        *(f"{room}.auditor{part}" for part in known),
    ]
