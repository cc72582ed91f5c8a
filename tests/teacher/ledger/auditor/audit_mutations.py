"""Changes of a ledger, at random: values, types, keys, order, the plan and its prices."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.wall.guarantee import EACH, POOLED, single_analyst
from labelwall.wall.messages import ExtractorSpec
from tests.ledgers import Entry, identity
from tests.teacher.ledger.auditor.honest_ledgers import FIELDS, MECHANISMS, Rows, extractor

CHEAP: list[Any] = [50.0, 50, 0, -1, float("nan"), True, "1", 1e300, None]  # few of them a price

NASTY: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 0.0, 1.0, 1.5, -0.5, 1e-9, 1e300, 900.0, 10**6, 2**31,
    2**63, 10**30, -(10**30), 123456789, float("nan"), float("inf"), float("-inf"), "", "1", "d",
    "screen", "aggregate", "pure", "laplace", "gnmax", "\ud800", "a\nb", "f" * 64, [], [1], [[1]],
    [True], [1.0], {}, {"a": 1}, {"epsilon": 0}, {"epsilon": 0.0},
]  # fmt: skip
Place = list[Any]


def paths(value: Any, here: Place | None = None) -> list[Place]:
    """The places of a JSON value, itself left out."""
    here = here or []
    inside = (
        value.items() if type(value) is dict else enumerate(value) if type(value) is list else ()
    )
    found: list[Place] = []
    for key, part in inside:
        found += [[*here, key], *paths(part, [*here, key])]
    return found


def _at(value: Any, path: Place) -> Any:
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
            rng.choice(extractor(spec)),
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
    text = text_of(row[1])
    keys = [i for i in range(len(text)) if text[i : i + 1] in "{," and text[i + 1 : i + 2] == '"']
    ends = [text.find(":", i) for i in keys]
    what = rng.randrange(8)
    if what < 3 and keys:
        place = rng.randrange(len(keys))
        name = text[keys[place] + 1 : ends[place]]
        extra = f"{name}:{text_of(rng.choice([0, 1, 3, 0.0, 'd', [], {}]))}"
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


def text_of(body: Any) -> str:
    return body if type(body) is str else json.dumps(body, sort_keys=True, separators=(",", ":"))


Stored = tuple[list[Entry], list[Entry]]  # entries, and extractors by their hash
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


def mutated(base: Rows, rng: random.Random) -> Stored:
    """A ledger after one change, or two or three."""
    rows = json.loads(json.dumps(base))
    for _ in range(rng.choice([1, 1, 1, 2, 2, 3])):
        before = json.dumps(rows)
        texts = [place for place, row in enumerate(rows) if type(row[1]) is str]
        change = rng.choice(MUTATIONS)
        try:
            change(rows, rng)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError):
            rows = json.loads(before)  # an earlier change left nothing for this one
        if texts:
            break
    return stored(rows)


def stored(rows: Rows) -> Stored:
    """The entries and the extractors of a ledger's file. What is no extractor is left out."""
    beside = [body for kind, body in rows if kind == FIELDS and type(body) is dict]
    return (
        [(str(kind), text_of(body)) for kind, body in rows if kind != FIELDS],
        [
            (body["sha256"], text_of(body["fields"]))
            for body in beside
            if {*body} == {"sha256", "fields"} and type(body["sha256"]) is str
        ],
    )
