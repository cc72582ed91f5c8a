"""Forged ledgers against the auditor, by the thousand.

    python -m tests.teacher.ledger.auditor.audit_fuzz N SEED

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
their
``next_stage`` and their releases; what a mechanism can release is restated in ``drawable``.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from labelwall.teacher.accounting import accountant, curves
from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.conversion import round_up
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.ledger.auditor import gaussians
from labelwall.teacher.ledger.auditor.auditor import Finding, audit
from labelwall.teacher.ledger.state import LedgerState, read_body
from labelwall.teacher.mechanisms.attributes.mechanism import (
    GnmaxAttributes,
    MultiLabel,
    PrivateKnnAttributes,
)
from labelwall.teacher.mechanisms.batch.base import BatchMechanism
from labelwall.teacher.mechanisms.batch.knn import BatchKnn
from labelwall.teacher.mechanisms.batch.radius import RadiusNeighbours
from labelwall.teacher.mechanisms.ind_knn.mechanism import IndKnn
from labelwall.teacher.mechanisms.naive_knn.mechanism import NaiveKnn
from labelwall.teacher.mechanisms.pate.mechanism import ConfidentGnmax, Gnmax, Lnmax
from labelwall.teacher.mechanisms.private_knn.mechanism import PrivateKnn
from labelwall.teacher.mechanisms.private_linear.mechanism import (
    LinearSums,
    PrivateLinear,
    PrivateLinearAttributes,
    PrivateLinearValue,
)
from labelwall.teacher.mechanisms.registry import AnyMechanism, from_slot
from labelwall.teacher.mechanisms.reverse_knn.mechanism import ReverseKnn
from labelwall.teacher.mechanisms.values.mechanism import PrivateKnnMean, PrivateKnnMedian
from labelwall.wall.adversary import EACH, POOLED, single_analyst
from labelwall.wall.errors import LabelwallError
from labelwall.wall.labels.values import STEPS
from labelwall.wall.messages import ExtractorSpec, canonical_json
from tests.ledgers import SPEC, Entry, identity, write

CLASSES, DELTA = 4, 1e-9  # no discrete privacy loss distribution at such a delta: faster
NOISY = {"sigma_screen": 85.0, "sigma_vote": 25.0}
MECHANISMS: list[AnyMechanism] = [
    PrivateKnn(k=30, threshold=10, sampling_probability=0.15, **NOISY),
    IndKnn(rho=0.01, sigma_count=40.0, filter="gdp"),
    IndKnn(rho=0.01, sigma_count=40.0),
    ReverseKnn(cells=3, neighbours=2, sigma=44),
    PrivateLinear(sigma=30.0),
    NaiveKnn(k=30, sigma_vote=25.0),
    Lnmax(teachers=30, scale=40.0),
    Gnmax(teachers=30, sigma_vote=25.0),
    ConfidentGnmax(teachers=30, threshold=10, **NOISY),
    RadiusNeighbours(radius=0.1, epsilon=0.05),
    RadiusNeighbours(radius=0.1, epsilon=0.05, accounting="queries"),
    BatchKnn(k=5, epsilon=0.05, conversion="interactive", records=100),
    BatchKnn(k=5, epsilon=0.05, conversion="none"),
    PrivateKnnAttributes(k=20, sampling_probability=0.1, tau=2, sigma_vote=100.0),
    GnmaxAttributes(teachers=20, tau=2, sigma_vote=100.0),
    PrivateKnnMean(k=20, sampling_probability=0.1, sigma_mean=10.0),
    PrivateKnnMedian(
        k=20, sampling_probability=0.1, cells=8, threshold=5, sigma_screen=30.0, epsilon=0.2
    ),
    PrivateLinearAttributes(sigma=30.0),
    PrivateLinearValue(sigma=30.0),
]
CHEAP: list[Any] = [50.0, 50, 0, -1, float("nan"), True, "1", 1e300, None]  # few of them a price
KEPT: dict[str, dict[str, Any]] = {}  # by function: results by arguments
PATE = {"classifier"}
LATER = {  # fields that ledgers of earlier versions lack
    "ind_knn": {"near", "tables", "bits", "hash_seed", "reuse"},
    "reverse_knn": {"reach"},
    "lnmax": PATE,
    "gnmax": PATE,
    "confident_gnmax": PATE,
}
Rows = list[list[Any]]  # [kind, body]: a ledger as it is mutated; a body may become a text
Belief = dict[str, object]


# Honest ledgers


def drawn(mechanism: AnyMechanism, release: str, beside: int, rng: random.Random) -> Any:
    """A value that a release can have."""
    label = rng.randrange(CLASSES)
    if release == "screen":
        return 1
    if isinstance(mechanism, IndKnn):
        return [rng.randrange(-20, 50), label]
    if isinstance(mechanism, ReverseKnn):
        return [rng.randrange(-40, 90) for _ in range(mechanism.cells * CLASSES)]
    if isinstance(mechanism, LinearSums):
        return [rng.randrange(-(10**8), 10**8) for _ in range(3 * CLASSES + 1)]
    if isinstance(mechanism, BatchKnn) and mechanism.conversion == "none":
        return [label, beside, 1, -1]
    if isinstance(mechanism, RadiusNeighbours):
        return [label, beside, 1, 159]  # (0.1 * 126)^2 is 158.76
    if isinstance(mechanism, BatchMechanism):
        return [label, rng.randint(1, beside), rng.randrange(2), rng.randrange(5000)]
    if isinstance(mechanism, MultiLabel):
        return [rng.randrange(-50000, 90000) for _ in range(CLASSES)]
    if isinstance(mechanism, PrivateKnnMean):
        return rng.randrange(-90000, 90000)
    if isinstance(mechanism, PrivateKnnMedian):
        return (2 * label + 1) * (STEPS + 1) // (2 * mechanism.cells)
    return label


def honest(mechanisms: list[AnyMechanism], rng: random.Random) -> Rows:
    """A ledger as a teacher writes it: two batches and a crash between, caps that are reached, one
    query that its screening turned away."""
    plan = Plan(50.0, DELTA, tuple(Slot(m.fields(), m.releases(5, 3)) for m in mechanisms))
    genesis = {"format": 1, "dataset": "d", "unsafe": False, "plan": plan.to_json()}
    rows: Rows = [["genesis", genesis], ["extractor", _extractor(SPEC)]]
    for slot, mechanism in enumerate(mechanisms):
        for batch in (["a", "b", "c"], ["d", "e", "f"]):
            keys = [identity(f"{mechanism.kind} {slot} {name}") for name in batch]
            _answer(rows, slot, mechanism, plan, keys, rng)
        rows.append(["extractor", _extractor(ExtractorSpec("raw", (5 + slot,), 4))])
    return json.loads(json.dumps(rows))


def _answer(
    rows: Rows, slot: int, mechanism: AnyMechanism, plan: Plan, keys: list[str], rng: random.Random
) -> None:
    for release in plan.slots[slot].releases:
        charges = [
            row[1]
            for row in rows
            if row[0] == "charge" and (row[1]["slot"], row[1]["release"]) == (slot, release.name)
        ]
        left = release.cap - sum(charge["count"] for charge in charges)
        granted = keys if release.prepaid or release.batch else keys[:left]
        count = 1 if release.prepaid or release.batch else len(granted)
        if not (release.prepaid and charges) and granted:
            rows.append(["charge", {"slot": slot, "release": release.name, "count": count}])
        if granted:
            places = [place for place, row in enumerate(rows) if row[0] == "charge"]
            results = {key: drawn(mechanism, release.name, len(granted), rng) for key in granted}
            if release.name == "screen":
                results[granted[0]] = rng.randrange(2)
            rows.append(["release", {"charge": places[-1], "results": results}])
        refused = [key for key in keys if key not in granted]
        if refused:
            body = {"slot": slot, "release": release.name, "identities": refused}
            rows.append(["refusal", body])
        if release.name == "screen":
            keys = [key for key in granted if results[key] == 1]


def register(rng: random.Random) -> Rows:
    """A register of two analysts."""
    rows = honest([MECHANISMS[0]], rng)[:1]
    rows[0][1] |= {"format": 2, "adversary": EACH}
    return [*rows, *(["analyst", {"name": n, "dataset": f"d {n}"}] for n in ("ann", "bob"))]


def bases(rng: random.Random) -> list[Rows]:
    """Honest ledgers: of each mechanism, of two together, of one analyst, and a register."""
    single = [honest([mechanism], rng) for mechanism in MECHANISMS]
    pairs = [honest(rng.sample(MECHANISMS[:8], 2), rng) for _ in range(4)]
    own = honest([MECHANISMS[0]], rng)
    own[0][1] |= {"format": 2, "adversary": single_analyst("ann")}
    return [*single, *pairs, own, register(rng)]


def _extractor(spec: ExtractorSpec) -> dict[str, object]:
    return {"sha256": spec.sha256(), "fields": spec.public_fields()}


# The independent reading


def drawable(mechanism: AnyMechanism, release: str, value: Any, beside: int) -> bool:
    """Whether a release of so many queries can be this value.

    Types and 64 bits are checked before.
    """
    if release == "screen":
        return value in (0, 1)
    if isinstance(mechanism, PrivateKnnMean):
        bound = mechanism.k * STEPS + 14 * 2 * STEPS * mechanism.sigma_mean + 1
        return type(value) is int and abs(value) <= bound
    if isinstance(mechanism, PrivateKnnMedian):
        cells = range(mechanism.cells)
        return value in [(2 * c + 1) * (STEPS + 1) // (2 * mechanism.cells) for c in cells]
    if isinstance(mechanism, MultiLabel):
        noise = 14 * 4096 * mechanism.sigma_vote + 1
        counts = type(value) is list and len(value) <= 62
        return counts and all(-noise <= v <= 4096 * mechanism.max_voters + noise for v in value)
    if isinstance(mechanism, ReverseKnn):
        noise = 14 * mechanism.sigma + 1
        counts = type(value) is list and len(value) % mechanism.cells == 0
        return counts and all(-noise <= v <= 1e12 + noise for v in value)
    if isinstance(mechanism, LinearSums):
        noise = 14 * float(mechanism.sigma or 0) * (2**40 + 2**34) ** 0.5 + 15
        return type(value) is list and all(abs(v) <= 2**20 * 1e12 + noise for v in value)
    if isinstance(mechanism, IndKnn):
        noise = 14 * float(mechanism.sigma_count or 0) + 1
        pair = type(value) is list and len(value) == 2
        return pair and -noise <= value[0] <= 1e12 + noise and 0 <= value[1] < 2**31
    if isinstance(mechanism, BatchMechanism):
        return _of_a_batch(mechanism, value, beside)
    return type(value) is int and 0 <= value < 2**31


def _of_a_batch(mechanism: BatchMechanism, value: Any, beside: int) -> bool:
    if type(value) is not list or len(value) != 4 or beside > 2048:
        return False
    label, bound, exact, square = value
    everyone = getattr(mechanism, "accounting", "") == "queries"
    if isinstance(mechanism, BatchKnn):
        nowhere = mechanism.conversion == "none"
        everyone = everyone or nowhere
        fits = square == -1 if nowhere else 0 <= square <= 2**26
    else:
        assert isinstance(mechanism, RadiusNeighbours)
        fits = abs(square - min((126 * mechanism.radius) ** 2, 2**26)) <= 0.5
    counted = (bound == beside and exact == 1) if everyone else 1 <= bound <= beside
    return 0 <= label < 2**31 and counted and exact in (0, 1) and fits


def believed(stored: list[Entry]) -> Belief | None:
    """What a reader of these entries may believe; None where no honest writer wrote them."""
    try:
        bodies = [(kind, read_body(text)) for kind, text in stored]
        state = LedgerState()
        for place, (kind, body) in enumerate(bodies):
            state.apply(kind, body, str(place))
        assert state.plan is not None
        mechanisms = [from_slot(slot) for slot in state.plan.slots]
        if not _written(bodies, state, mechanisms):
            return None
        analysts = len(state.analysts)
        epsilon = certified_epsilon(state.plan)
        pooled = round_up(certified_epsilon(state.plan.pooled(analysts))) if analysts else None
    except (LabelwallError, AssertionError):
        return None
    charged, released = _recount(bodies)
    return {
        "epsilon": round_up(epsilon) if epsilon <= state.plan.epsilon else None,
        "delta": state.plan.delta,
        "budget": state.plan.epsilon,
        "unsafe": state.unsafe,
        "adversary": state.adversary,
        "analysts": state.analysts,
        "pooled": pooled,
        "charged": charged,
        "released": released,
    }


def _recount(bodies: list[tuple[str, dict]]) -> tuple[dict[str, int], dict[str, int]]:
    charged: Counter[str] = Counter()
    released: Counter[str] = Counter()
    for kind, body in bodies:
        if kind == "charge":
            charged[f"{body['slot']}/{body['release']}"] += body["count"]
        elif kind == "release":
            paid = bodies[body["charge"]][1]
            released[f"{paid['slot']}/{paid['release']}"] += len(body["results"])
    return dict(charged), dict(released)


def _written(
    bodies: list[tuple[str, dict]], state: LedgerState, mechanisms: list[AnyMechanism]
) -> bool:
    """Whether a teacher of these mechanisms can have come to these entries."""
    assert state.plan is not None
    known: dict[str, dict[str, Any]] = {}
    owner: dict[str, bytes] = {}
    extractor, widths, labels = "", set(), [-1]
    complete = all(
        set(slot.mechanism) | LATER.get(m.kind, set()) == set(m.fields())
        for slot, m in zip(state.plan.slots, mechanisms, strict=True)
    )
    if not complete or not mechanisms or not _named(bodies):
        return False
    if any(isinstance(m, NaiveKnn) and m.k > 10**12 for m in mechanisms):
        return False  # more neighbours than records: the auditor takes it for a forgery
    for kind, body in bodies[1:]:
        if kind == "extractor":
            if body["sha256"] == extractor or not _is_extractor(body):
                return False
            extractor = body["sha256"]
        elif kind == "charge" and not extractor:
            return False
        elif kind in ("release", "refusal"):
            paid = bodies[body["charge"]][1] if kind == "release" else body
            name, mechanism = paid["release"], mechanisms[paid["slot"]]
            asked = body["results"] if kind == "release" else body["identities"]
            fields = canonical_json(mechanism.fields())
            if any(owner.setdefault(key, fields) != fields for key in asked):
                return False
            if kind == "refusal":
                later = mechanism.stages.index(name) > 0
                if later and any(known.get(key, {}).get(mechanism.stages[0]) != 1 for key in asked):
                    return False
                continue  # another process may have answered it meanwhile
            by_query = not isinstance(mechanism, IndKnn | BatchMechanism)
            if by_query and len(asked) != paid["count"]:
                return False
            for key, value in asked.items():
                if mechanism.next_stage(known.get(key, {})) != name:
                    return False
                if not drawable(mechanism, name, value, len(asked)):
                    return False
                known.setdefault(key, {})[name] = value
                widths |= _width(mechanism, value)
                labels += _label(mechanism, name, value)
    return len(widths) <= 1 and all(max(labels) < width for width in widths)


def _width(mechanism: AnyMechanism, value: Any) -> set[int]:
    if isinstance(mechanism, ReverseKnn):
        return {len(value) // mechanism.cells}
    return {len(value)} if isinstance(mechanism, MultiLabel) else set()


def _label(mechanism: AnyMechanism, release: str, value: Any) -> list[int]:
    if isinstance(mechanism, IndKnn):
        return [value[1]]
    if isinstance(mechanism, BatchMechanism):
        return [value[0]]
    return [value] if release == "aggregate" else []


def _named(bodies: list[tuple[str, dict]]) -> bool:
    """Whether texts are a teacher's: printable names, distinct hashes as identities."""
    texts = [bodies[0][1]["dataset"]]
    texts += [body["dataset"] for kind, body in bodies if kind == "analyst"]
    keys = [key for kind, body in bodies if kind == "release" for key in body["results"]]
    for kind, body in bodies:
        if kind == "refusal":
            keys += body["identities"]
            if len(set(body["identities"])) < len(body["identities"]):
                return False
    hashes = all(len(key) == 64 and set(key) <= set("0123456789abcdef") for key in keys)
    return hashes and all(text.isprintable() and 0 < len(text) <= 256 for text in texts)


def _is_extractor(body: dict) -> bool:
    """Whether the fields make an extractor of this hash, its weights and axes apart."""
    fields = dict(body["fields"])
    hashes = [fields.pop(name, "") for name in ("weights_sha256", "axes_sha256")]
    try:
        for name in ("input_shape", "mean", "std", "center"):
            fields[name] = tuple(fields[name])
        made = ExtractorSpec(**fields).public_fields()
    except (LabelwallError, TypeError, ValueError, KeyError):
        return False
    made |= {"weights_sha256": hashes[0], "axes_sha256": hashes[1]}
    written = canonical_json(body["fields"])
    named = hashlib.sha256(written).hexdigest() == body["sha256"]
    return named and canonical_json(made) == written


# Mutations


NASTY: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 0.0, 1.0, 1.5, -0.5, 1e-9, 1e300, 900.0, 10**6, 2**31,
    2**63, 10**30, -(10**30), 123456789, float("nan"), float("inf"), float("-inf"), "", "1", "d",
    "screen", "aggregate", "pure", "laplace", "gnmax", "\ud800", "a\nb", "f" * 64, [], [1], [[1]],
    [True], [1.0], {}, {"a": 1}, {"epsilon": 0}, {"epsilon": 0.0},
]  # fmt: skip
Path_ = list[Any]


def paths(value: Any, here: Path_ | None = None) -> list[Path_]:
    """The places of a JSON value, itself left out."""
    here = here or []
    inside = (
        value.items() if type(value) is dict else enumerate(value) if type(value) is list else ()
    )
    found: list[Path_] = []
    for key, part in inside:
        found += [[*here, key], *paths(part, [*here, key])]
    return found


def _at(value: Any, path: Path_) -> Any:
    for key in path:
        value = value[key]
    return value


def _some_body(rows: Rows, rng: random.Random) -> Any:
    bodies = [row[1] for row in rows if type(row[1]) is dict and row[1]]
    return rng.choice(bodies) if bodies else {"a": 1}


def change_a_value(rows: Rows, rng: random.Random) -> None:
    """Something nasty, something near, or something from elsewhere in the ledger."""
    body = _some_body(rows, rng)
    path = rng.choice(paths(body))
    parent, old = _at(body, path[:-1]), _at(body, path)
    other = _some_body(rows, rng)
    near = [old]
    if type(old) in (int, float):
        near = [old + 1, old - 1, -old, float(old), int(old) if abs(old) < 1e18 else 0, old * 2]
        near += [bool(old), str(old), [old]]
    elsewhere = _at(other, rng.choice(paths(other)))
    chosen = rng.choice([rng.choice(NASTY), rng.choice(near), elsewhere])
    parent[path[-1]] = json.loads(json.dumps(chosen))


def change_a_result(rows: Rows, rng: random.Random) -> None:
    """A released value, or whose it is."""
    results = [row[1]["results"] for row in rows if row[0] == "release"]
    found = rng.choice(results)
    key = rng.choice(sorted(found))
    old = found.pop(key)
    near = [0, 1, old, [old], old[::-1] if type(old) is list else old + 1, rng.choice(NASTY)]
    name = rng.choice([key, key, key, _any_identity(rows, rng), identity(str(rng.random())), "a"])
    found[name] = json.loads(json.dumps(rng.choice(near)))


def change_the_first_entry(rows: Rows, rng: random.Random) -> None:
    """Its format, data set, noise, adversary or budget."""
    first = rows[0][1]
    where = rng.choice([first, first, first["plan"]])
    name = rng.choice(
        [key for key in (*sorted(where), "adversary") if key not in ("plan", "slots")]
    )
    texts = [EACH, single_analyst("bob"), POOLED, "analyst ann", single_analyst("ann") + "\n", ""]
    where[name] = rng.choice([*texts, 1, 2, 1.0, True, False, 1e-9, 0.5, 60, rng.choice(NASTY)])


def change_a_key(rows: Rows, rng: random.Random) -> None:
    """Take a field away, rename it, or add one."""
    body = _some_body(rows, rng)
    objects = [body, *(_at(body, path) for path in paths(body) if type(_at(body, path)) is dict)]
    target = rng.choice(objects)
    key = rng.choice(sorted(target)) if target else "x"
    kept = target.pop(key, 0) if rng.random() < 0.7 else 1
    if rng.random() < 0.7:
        name = rng.choice(
            [key + "x", "time", identity(str(rng.random())), "kind", "prepaid", "cap"]
        )
        target[name] = kept


def change_the_order(rows: Rows, rng: random.Random) -> None:
    """Remove, repeat, swap, move or turn into another kind."""
    one, other = rng.randrange(len(rows)), rng.randrange(len(rows))
    what = rng.randrange(6)
    if what == 0 and len(rows) > 1:
        del rows[one]
    elif what == 1:
        rows.insert(other, json.loads(json.dumps(rows[one])))
    elif what == 2:
        rows[one], rows[other] = rows[other], rows[one]
    elif what == 3:
        rows.insert(other, rows.pop(one))
    elif what == 4:
        rows[one][0] = rng.choice(
            ["genesis", "charge", "release", "refusal", "analyst", "gift", ""]
        )
    else:
        del rows[one + 1 :]


def add_an_entry(rows: Rows, rng: random.Random) -> None:
    """A charge, a release, a refusal, an extractor, an analyst or a first entry more."""
    names = [r["name"] for r in _slots(rows)[0]["releases"]] if _slots(rows) else ["screen"]
    slot, name = rng.choice([0, 0, 0, 1]), rng.choice(names)
    key = rng.choice([identity(f"new {rng.random()}"), _any_identity(rows, rng)])
    value = rng.choice([1, 0, [0, 1], [1, 1, 1, 159], 3, rng.choice(NASTY)])
    spec = ExtractorSpec("raw", (rng.randrange(1, 9),), 4)
    entry: list[Any] = rng.choice(
        [
            ["charge", {"slot": slot, "release": name, "count": rng.choice([1, 1, 2, True])}],
            ["release", {"charge": rng.randrange(len(rows) + 1), "results": {key: value}}],
            ["refusal", {"slot": slot, "release": name, "identities": [key]}],
            ["extractor", _extractor(spec)],
            ["analyst", {"name": rng.choice(["eve", "ann", "e\n"]), "dataset": "d"}],
            ["genesis", json.loads(json.dumps(rows[0][1]))],
        ]
    )
    rows.insert(rng.randrange(len(rows) + 1), entry)


def change_the_price(rows: Rows, rng: random.Random) -> None:
    """Change a field, what is priced or both; or a cap, a curve, a charge by the batch."""
    slots = _slots(rows)
    if not slots:
        return change_a_value(rows, rng)
    slot = rng.choice(slots)
    if not all(type(slot.get(key)) in (dict, list) for key in ("mechanism", "releases")):
        return change_a_value(rows, rng)
    fields, releases = slot["mechanism"], [r for r in slot["releases"] if type(r) is dict]
    release = rng.choice(releases) if releases else {}
    what = rng.randrange(7)
    if what == 0 and fields:
        name = rng.choice(sorted(fields))
        known = rng.choice([rng.choice(NASTY), fields[name], 2, 0.5, 50.0, 20])
        new = rng.choice(CHEAP) if name in ("sigma_vote", "sampling_probability") else known
        old, fields[name] = fields[name], new
        for entry in releases:
            for key, value in entry.get("parameters", {}).items():
                if value == old and rng.random() < 0.8:
                    entry["parameters"][key] = new
    elif what == 1 and type(release.get("parameters")) is dict and release["parameters"]:
        key = rng.choice(sorted(release["parameters"]))
        release["parameters"][key] = rng.choice([0, 0.0, 1e6, 900.0, 1e9, rng.choice(NASTY)])
    elif what == 2:
        release |= {"curve": "pure", "parameters": {"epsilon": rng.choice([0, 0.0, 1e-9, 0.05])}}
    elif what == 3:
        release["cap"] = rng.choice([0, 1, 2, 4, 6, 10**9, 10**10, True, 5.0, -1])
    elif what == 4:
        release[rng.choice(["prepaid", "batch"])] = rng.choice([True, True, 1, 0, None])
    elif what == 5:
        fields["kind"] = rng.choice([m.kind for m in MECHANISMS] + ["coin", None, 1])
    else:
        slots.append(json.loads(json.dumps(rng.choice(slots))))


def price_it_again(rows: Rows, rng: random.Random) -> None:
    """Another mechanism of few, priced by the registry: another honest plan, or none that fits."""
    slots = _slots(rows)
    made = rng.choice(MECHANISMS)
    if not slots:
        return
    plan = Plan(1.0, 0.5, (Slot(made.fields(), made.releases(rng.choice([5, 6]), 3)),))
    slots[rng.randrange(len(slots))] = json.loads(json.dumps(plan.to_json()))["slots"][0]


def change_the_text(rows: Rows, rng: random.Random) -> None:
    """Other texts: repeated keys, other spellings of numbers, spaces, invalid JSON."""
    row = rng.choice(rows)
    text = _text(row[1])
    keys = [i for i in range(len(text)) if text[i : i + 1] in "{," and text[i + 1 : i + 2] == '"']
    ends = [text.find(":", i) for i in keys]
    what = rng.randrange(8)
    if what < 3 and keys:
        place = rng.randrange(len(keys))
        name = text[keys[place] + 1 : ends[place]]
        extra = f"{name}:{_text(rng.choice([0, 1, 3, 0.0, 'd', [], {}]))}"
        at = keys[place] + 1
        row[1] = text[:at] + extra + "," + text[at:] if what else text[:-1] + "," + extra + "}"
    elif what == 3:
        row[1] = text.replace(":", ": ", 1)
    elif what == 4:
        row[1] = text.replace("1", rng.choice(["1e0", "1.0", "01", "+1", "1e999", "9" * 5000]), 1)
    elif what == 5:
        row[1] = text[: rng.randrange(len(text) + 1)]
    elif what == 6:
        row[1] = rng.choice(["[" * 100_000, "null", "[]", "1", '"a"', "{}", "", "NaN", text + " "])
    else:
        row[1] = text.replace("e", "\\u0065", 1)


def _slots(rows: Rows) -> list[Any]:
    body = rows[0][1] if rows else None
    plan = body.get("plan") if type(body) is dict else None
    slots = plan.get("slots") if type(plan) is dict else None
    return slots if type(slots) is list and slots and all(type(s) is dict for s in slots) else []


def _any_identity(rows: Rows, rng: random.Random) -> str:
    results = [row[1].get("results") for row in rows if type(row[1]) is dict]
    keys = [key for found in results if type(found) is dict for key in found]
    return rng.choice(keys) if keys else "f" * 64


def _text(body: Any) -> str:
    return body if type(body) is str else json.dumps(body, sort_keys=True, separators=(",", ":"))


Mutation = Callable[[Rows, random.Random], None]
MUTATIONS: list[Mutation] = [
    change_a_value,
    change_a_value,
    change_a_result,
    change_the_first_entry,
    change_a_key,
    change_the_order,
    add_an_entry,
    change_the_price,
    change_the_price,
    price_it_again,
    change_the_text,
]


def mutated(base: Rows, rng: random.Random) -> list[Entry]:
    """Entries after one change, or two or three."""
    rows = json.loads(json.dumps(base))
    for _ in range(rng.choice([1, 1, 1, 2, 2, 3])):
        kept = json.dumps(rows)
        texts = [place for place, row in enumerate(rows) if type(row[1]) is str]
        change = rng.choice(MUTATIONS)
        try:
            change(rows, rng)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError):
            rows = json.loads(kept)  # an earlier change left nothing for this one
        if texts:
            break
    return [(str(kind), _text(body)) for kind, body in rows]


# Verdicts


def said(finding: Finding) -> Belief:
    """What a finding makes its reader believe."""
    names = "epsilon delta budget unsafe adversary analysts pooled charged released"
    return {name: getattr(finding, name) for name in names.split()}


def verdict(stored: list[Entry], original: Belief, path: Path) -> str:
    """The class of one mutant; one that begins with FAILURE is a bug of the auditor, or of this."""
    write(path, stored)
    finding, truth = audit(path), believed(stored)
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
        mock.patch.object(accountant, "gaussian_rdp", faster["gaussian"].rdp),
        mock.patch.object(accountant, "_certificates", kept(accountant._certificates.__wrapped__)),
        mock.patch.object(gaussians, "smoothed", kept(gaussians.smoothed)),
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


def fuzz(mutants: int, seed: int, folder: Path, *, until_failure: bool = False) -> Counter[str]:
    """How many mutants are of each class. A traceback is raised."""
    with remembered():
        return _fuzz(mutants, seed, folder, until_failure)


def _fuzz(mutants: int, seed: int, folder: Path, until_failure: bool) -> Counter[str]:
    rng, counts = random.Random(seed), Counter[str]()
    path, originals = folder / "mutant.sqlite", bases(rng)
    beliefs = []
    for base in originals:
        write(path, [(kind, _text(body)) for kind, body in base])
        finding = audit(path)
        assert finding.problems == [], finding.problems
        beliefs.append(said(finding))
    for _ in range(mutants):
        chosen = rng.randrange(len(originals))
        stored = mutated(originals[chosen], rng)
        found = verdict(stored, beliefs[chosen], path)
        if found.startswith("FAILURE"):
            print(found, json.dumps(stored)[:6000], file=sys.stderr)
            found = " ".join(found.split(":")[0].split()[:2])
        counts[found] += 1
        if until_failure and found.startswith("FAILURE"):
            break
    return counts


def fuzz_bytes(mutants: int, seed: int, folder: Path) -> Counter[str]:
    """The same for damaged files: a traceback is raised, a changed belief is a failure."""
    rng, counts = random.Random(seed), Counter[str]()
    path = folder / "damaged.sqlite"
    write(path, [(kind, _text(body)) for kind, body in honest([MECHANISMS[0]], rng)])
    content, belief = path.read_bytes(), said(audit(path))
    for _ in range(mutants):
        path.write_bytes(damaged(content, rng))
        finding = audit(path)
        finding.render().encode()
        same = said(finding) == belief
        failed = finding.consistent and not same
        counts["FAILURE" if failed else "same belief" if finding.consistent else "refused"] += 1
    return counts


def main(mutants: int, seed: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        counts = fuzz(mutants, seed, Path(folder))
        print(json.dumps({"entries": dict(counts)}), flush=True)
        files = fuzz_bytes(mutants // 10, seed, Path(folder))
    print(json.dumps({"files": dict(files), "sqlite": sqlite3.sqlite_version}))
    return int(any(name.startswith("FAILURE") for name in [*counts, *files]))


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), int(sys.argv[2])))
