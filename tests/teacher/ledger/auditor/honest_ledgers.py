"""Honest ledgers of every mechanism, as a teacher writes them, with results drawn at random."""

from __future__ import annotations

import json
import random
from typing import Any

from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.mechanisms.attributes import (
    AttributeVotes,
    GnmaxAttributes,
    PrivateKnnAttributes,
)
from labelwall.teacher.mechanisms.batch import BatchKnn, BatchMechanism, RadiusNeighbours
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.pate import ConfidentGnmax, Gnmax, Lnmax
from labelwall.teacher.mechanisms.registry import AnyMechanism
from labelwall.teacher.mechanisms.sums import (
    LinearSums,
    PrivateLinear,
    PrivateLinearAttributes,
    PrivateLinearValue,
    ReverseKnn,
)
from labelwall.teacher.mechanisms.values import PrivateKnnMean, PrivateKnnMedian
from labelwall.teacher.mechanisms.votes import NaiveKnn, PrivateKnn, PrivateRadius
from labelwall.wall.guarantee import EACH, POOLED, single_analyst
from labelwall.wall.label_kinds import STEPS
from labelwall.wall.messages import ExtractorSpec
from tests.ledgers import SPEC, identity

CLASSES, DELTA = 4, 1e-9  # no discrete privacy loss distribution at such a delta: faster
NOISY = {"sigma_screen": 85.0, "sigma_vote": 25.0}
MECHANISMS: list[AnyMechanism] = [
    PrivateKnn(k=30, threshold=10, sampling_probability=0.15, **NOISY),
    PrivateRadius(share=0.02, threshold=10, **NOISY),
    IndKnn(rho=0.01, sigma_count=40.0),
    ReverseKnn(centroids=3, neighbours=2, sigma=44),
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
# [kind, body]: a ledger as it is mutated; a body may become a text. Rows of the kind FIELDS are no
# entries, but extractors that stand beside them.
Rows = list[list[Any]]
FIELDS = "fields"


def drawn(
    mechanism: AnyMechanism, release: str, beside: int, dimensions: int, rng: random.Random
) -> Any:
    """A value that a release can have, of an extractor of so many ``dimensions``."""
    label = rng.randrange(CLASSES)
    if release == "screen":
        return 1
    if isinstance(mechanism, IndKnn):
        return [rng.randrange(-20, 50), label]
    if isinstance(mechanism, ReverseKnn):
        return [rng.randrange(-40, 90) for _ in range(mechanism.centroids * CLASSES)]
    if isinstance(mechanism, LinearSums):
        outputs = 1 if mechanism.label_space == "value" else CLASSES
        return [rng.randrange(-(10**8), 10**8) for _ in range((dimensions + 1) * outputs + 1)]
    if isinstance(mechanism, BatchKnn) and mechanism.conversion == "none":
        return [label, beside, 1, -1]
    if isinstance(mechanism, RadiusNeighbours):
        return [label, beside, 1, 159]  # (0.1 * 126)^2 is 158.76
    if isinstance(mechanism, BatchMechanism):
        return [label, rng.randint(1, beside), rng.randrange(2), rng.randrange(5000)]
    if isinstance(mechanism, AttributeVotes):
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
    rows: Rows = [["genesis", genesis(plan)], *extractor(SPEC)]
    for slot, mechanism in enumerate(mechanisms):
        for batch in (["a", "b", "c"], ["d", "e", "f"]):
            keys = [identity(f"{mechanism.kind} {slot} {name}") for name in batch]
            _answer(rows, slot, mechanism, plan, keys, rng)
        rows += extractor(ExtractorSpec("raw", (5 + slot,), 4))
    return json.loads(json.dumps(rows))


def _answer(
    rows: Rows, slot: int, mechanism: AnyMechanism, plan: Plan, keys: list[str], rng: random.Random
) -> None:
    for release in plan.slots[slot].releases:
        charges = [
            body
            for body in rows_of(rows, "charge")
            if (body["slot"], body["release"]) == (slot, release.name)
        ]
        left = release.cap - sum(charge["count"] for charge in charges)
        granted = keys if release.prepaid or release.batch else keys[:left]
        count = 1 if release.prepaid or release.batch else len(granted)
        if not (release.prepaid and charges) and granted:
            rows.append(["charge", {"slot": slot, "release": release.name, "count": count}])
        if granted:
            dimensions = rows_of(rows, FIELDS)[-1]["fields"]["input_shape"][0]
            numbered = [row for row in rows if row[0] != FIELDS]
            places = [place for place, row in enumerate(numbered) if row[0] == "charge"]
            results = {
                key: drawn(mechanism, release.name, len(granted), dimensions, rng)
                for key in granted
            }
            if release.name == "screen":
                results[granted[0]] = rng.randrange(2)
            rows.append(["release", {"charge": places[-1], "results": results}])
        refused = [key for key in keys if key not in granted]
        if refused:
            body = {"slot": slot, "release": release.name, "identities": refused}
            rows.append(["refusal", body])
        if release.name == "screen":
            keys = [key for key in granted if results[key] == 1]


def rows_of(rows: Rows, kind: str) -> list[Any]:
    return [body for found, body in rows if found == kind]


def register(rng: random.Random) -> Rows:
    """A register of two analysts."""
    rows = honest([MECHANISMS[0]], rng)[:1]
    rows[0][1]["adversary"] = EACH
    return [*rows, *(["analyst", {"name": n, "dataset": f"d {n}"}] for n in ("ann", "bob"))]


def bases(rng: random.Random) -> list[Rows]:
    """Honest ledgers: of each mechanism, of two together, of one analyst, and a register."""
    single = [honest([mechanism], rng) for mechanism in MECHANISMS]
    pairs = [honest(rng.sample(MECHANISMS[:8], 2), rng) for _ in range(4)]
    own = honest([MECHANISMS[0]], rng)
    own[0][1]["adversary"] = single_analyst("ann")
    return [*single, *pairs, own, register(rng)]


def genesis(plan: Plan) -> dict[str, object]:
    named = {"format": 1, "dataset": "d", "unsafe": False, "adversary": POOLED}
    return {**named, "plan": plan.to_json()}


def extractor(spec: ExtractorSpec) -> Rows:
    """An entry that names an extractor, and the extractor."""
    named = {"sha256": spec.sha256()}
    return [["extractor", named], [FIELDS, {**named, "fields": spec.public_fields()}]]
