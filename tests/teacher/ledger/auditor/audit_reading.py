"""The independent reading of a ledger: what a reader may believe, and what can be released."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from typing import Any

from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.conversion import round_up
from labelwall.teacher.ledger.auditor.mechanisms import KINDS
from labelwall.teacher.ledger.state import LedgerState, read_body
from labelwall.teacher.mechanisms.attributes import AttributeVotes
from labelwall.teacher.mechanisms.batch import BatchKnn, BatchMechanism, RadiusNeighbours
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.registry import AnyMechanism, from_slot
from labelwall.teacher.mechanisms.sums import LinearSums, ReverseKnn
from labelwall.teacher.mechanisms.values import PrivateKnnMean, PrivateKnnMedian
from labelwall.wall.errors import LabelwallError
from labelwall.wall.label_kinds import STEPS
from labelwall.wall.messages import ExtractorSpec, canonical_json
from tests.ledgers import Entry
from tests.teacher.ledger.auditor.honest_ledgers import MECHANISMS

EXAMPLES = {m.kind: m for m in MECHANISMS}

Belief = dict[str, object]


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
    if isinstance(mechanism, AttributeVotes):
        noise = 14 * 4096 * mechanism.sigma_vote + 1
        counts = type(value) is list and len(value) <= 62
        return counts and all(-noise <= v <= 4096 * mechanism.max_voters + noise for v in value)
    if isinstance(mechanism, ReverseKnn):
        noise = 14 * mechanism.sigma + 1
        counts = type(value) is list and len(value) % mechanism.centroids == 0
        return counts and all(-noise <= v <= 1e12 + noise for v in value)
    if isinstance(mechanism, LinearSums):
        noise = 14 * float(mechanism.sigma or 0) * (2**40 + 2**34) ** 0.5 + 15
        bounded = type(value) is list and all(abs(v) <= 2**20 * 1e12 + noise for v in value)
        return bounded and bool(outputs_of(mechanism, len(value)))
    if isinstance(mechanism, IndKnn):
        noise = 14 * float(mechanism.sigma_count or 0) + 1
        pair = type(value) is list and len(value) == 2
        return pair and -noise <= value[0] <= 1e12 + noise and 0 <= value[1] < 2**31
    if isinstance(mechanism, BatchMechanism):
        return _of_a_batch(mechanism, value, beside)
    return type(value) is int and 0 <= value < 2**31


def outputs_of(mechanism: LinearSums, length: int) -> set[int]:
    """The numbers of outputs c for which (d + 1) c + 1 numbers are a sum, for some d."""
    low, high = {"class": (2, 4096), "attributes": (1, 62), "value": (1, 1)}[mechanism.label_space]
    features = range(1, 4001)
    return {
        c
        for c in range(low, high + 1)
        if (length - 1) % c == 0 and (length - 1) // c - 1 in features and length - 1 <= 2**20
    }


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


HARMLESS = {"window": 1, "cells": 1024}  # beside any other fields, where they are free


def with_harmless_fields(mechanism: Any) -> Any:
    """A recorded mechanism whose free fields, if they are JSON scalars, are an honest writer's."""
    kind = mechanism.get("kind") if type(mechanism) is dict else None
    if type(kind) is not str or kind not in EXAMPLES:
        return mechanism
    example = EXAMPLES[kind].fields() | HARMLESS
    return mechanism | {
        name: example[name]
        for name in KINDS[kind].free
        if name in mechanism and not isinstance(mechanism[name], list | dict)
    }


def believed(stored: list[Entry], extractors: list[Entry]) -> Belief | None:
    """What a reader of a file may believe; None where no honest writer wrote it.

    Fields that decide neither a price nor a result are read as an honest writer's.
    """
    try:
        bodies = [(kind, read_body(text)) for kind, text in stored]
        mechanisms = []
        state = LedgerState()
        for place, (kind, body) in enumerate(bodies):
            state.apply(kind, body, str(place))
        assert state.plan is not None
        for slot in state.plan.slots:
            mechanisms.append(
                from_slot(replace(slot, mechanism=with_harmless_fields(slot.mechanism)))
            )
        if not _written(bodies, state, mechanisms) or not _named_once(bodies, extractors):
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
    sums: dict[int, tuple[str, int, set[int]]] = {}  # by entry: extractor, length, outputs
    paid_under: dict[int, str] = {}
    complete = all(
        set(slot.mechanism) == set(m.fields())
        for slot, m in zip(state.plan.slots, mechanisms, strict=True)
    )
    if not complete or not mechanisms or not _named(bodies):
        return False
    for seq, (kind, body) in enumerate(bodies[1:], 1):
        if kind == "extractor":
            if body["sha256"] == extractor:
                return False
            extractor = body["sha256"]
        elif kind == "charge":
            if not extractor:
                return False
            paid_under[seq] = extractor
        elif kind in ("release", "refusal"):
            paid = bodies[body["charge"]][1] if kind == "release" else body
            name, mechanism = paid["release"], mechanisms[paid["slot"]]
            asked = body["results"] if kind == "release" else body["identities"]
            fields = canonical_json(state.plan.slots[paid["slot"]].mechanism)
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
                if isinstance(mechanism, LinearSums):
                    outputs = outputs_of(mechanism, len(value))
                    sums[len(sums)] = paid_under[body["charge"]], len(value), outputs
                widths |= _width(mechanism, value)
                labels += _label(mechanism, name, value)
    lengths = {(name, length) for name, length, _ in sums.values()}
    if len(lengths) > len({name for name, _ in lengths}):
        return False
    fits = all(widths <= outputs for _, _, outputs in sums.values())
    return fits and len(widths) <= 1 and all(max(labels) < width for width in widths)


def _width(mechanism: AnyMechanism, value: Any) -> set[int]:
    if isinstance(mechanism, ReverseKnn):
        return {len(value) // mechanism.centroids}
    return {len(value)} if isinstance(mechanism, AttributeVotes) else set()


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


def _named_once(bodies: list[tuple[str, dict]], extractors: list[Entry]) -> bool:
    """Whether the extractors are those that the entries name, each once."""
    named = {body["sha256"] for kind, body in bodies if kind == "extractor"}
    return named == {sha256 for sha256, _ in extractors} and (
        len(named) == len(extractors) and all(_is_extractor(*one) for one in extractors)
    )


def _is_extractor(sha256: str, text: str) -> bool:
    """Whether the fields make an extractor of this hash, its weights and axes apart."""
    try:
        fields = read_body(text)
        hashes = [fields.pop(name, "") for name in ("weights_sha256", "axes_sha256")]
        for name in ("input_shape", "mean", "std", "center"):
            fields[name] = tuple(fields[name])
        public = ExtractorSpec(**fields).public_fields()
    except (LabelwallError, TypeError, ValueError, KeyError):
        return False
    public |= {"weights_sha256": hashes[0], "axes_sha256": hashes[1]}
    written = canonical_json(read_body(text))
    return hashlib.sha256(written).hexdigest() == sha256 and canonical_json(public) == written
