"""The auditor: recompute a certificate from a ledger file alone, trusting nothing of the program that wrote it.

Shares the curve functions and the plan's type with the teacher, and nothing else: the chain, the order, the caps and the counts
are checked here a second time, from the text of the entries, on purpose.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labelwall.teacher.accounting.accountant import certificates, certified_epsilon
from labelwall.teacher.accounting.conversion import round_up
from labelwall.teacher.accounting.plan import Plan
from labelwall.wall.adversary import EACH, POOLED, is_alone
from labelwall.wall.errors import LabelwallError, MissingData

PREPAID_KIND = "ind_knn"
BATCH_KINDS = ("radius", "batch_knn")
ONE_OUTCOME = ("screening", "argmax", "bounded_range")
KNOWN = {
    "genesis": {"format", "dataset", "unsafe", "plan"},
    "extractor": {"sha256", "fields"},
    "charge": {"slot", "release", "count"},
    "release": {"charge", "results"},
    "refusal": {"slot", "release", "identities"},
    "analyst": {"name", "dataset"},
}
GENESIS_ALONE = KNOWN["genesis"] | {
    "adversary"
}  # format 2: of one analyst's own ledger, or of the register of several


@dataclass
class Finding:
    """What an audit says. ``epsilon``: of the recorded plan, None where nothing is certified; ``problems``: one line each.

    ``adversary``: against whom it holds, as the first entry says. A finding is about one ledger; two can not be joined to one.
    ``pooled``: of a register, the epsilon against all its analysts together, at the same delta.
    """

    epsilon: float | None = None
    delta: float | None = None
    budget: float | None = None
    entries: int = 0
    head: str = ""
    dataset: str = ""
    unsafe: bool = False
    adversary: str = ""
    analysts: dict[str, str] = field(
        default_factory=dict
    )  # of a register: name -> data set of the own ledger
    pooled: float | None = None
    certificates: dict[str, float] = field(default_factory=dict)
    charged: dict[str, int] = field(default_factory=dict)  # "slot/release" -> releases paid
    released: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def consistent(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, object]:
        return {**vars(self), "consistent": self.consistent}

    def render(self) -> str:
        """The finding for a reader."""
        certified = (
            "nothing"
            if self.epsilon is None
            else f"epsilon {self.epsilon:.3f} at delta {self.delta:g}"
        )
        lines = [
            f"{'consistent' if self.consistent else 'NOT CONSISTENT'}: {self.entries} entries certify {certified}"
        ]
        lines.append(f"  against {self.adversary or 'an unknown adversary'}")
        lines += [
            f"  analyst {name}: ledger of data set {dataset}"
            for name, dataset in self.analysts.items()
        ]
        if self.pooled is not None:
            lines.append(
                f"  if all {len(self.analysts)} pool their answers: epsilon {self.pooled:.3f} at delta {self.delta:g}"
            )
        lines += [
            f"  {name:36} {epsilon:8.3f}"
            for name, epsilon in sorted(self.certificates.items(), key=lambda item: item[1])
        ]
        lines += [
            f"  charged {count} x {name}, released {self.released.get(name, 0)}"
            for name, count in self.charged.items()
        ]
        lines += [f"  problem: {problem}" for problem in self.problems]
        return "\n".join([*lines, f"  head {self.head}"])


def audit(path: Path, *, expect_head: str | None = None) -> Finding:
    """Replay an exported (or live) ledger: chain, order, caps, counts, certificate.

    ``expect_head``: hash of an entry (from a receipt or a summary) that must stand in the chain.
    Raises MissingData where there is no file; whatever is wrong inside it is a problem in the finding.
    """
    if not path.is_file():
        raise MissingData(f"there is no ledger at {path}.")
    finding = Finding()
    rows, stored_head = _read(path, finding)
    hashes = _check_chain(rows, finding)
    finding.entries, finding.head = len(rows), hashes[-1] if hashes else ""
    if stored_head != (len(rows) - 1, finding.head):
        finding.problems.append(
            "the recorded head is not the last entry: entries are missing at the end, or were added by hand"
        )
    if expect_head is not None and expect_head not in hashes:
        finding.problems.append(
            "the expected head is not in the chain: this copy is older than it, or another ledger"
        )
    _check_entries(rows, finding)
    if finding.problems:
        finding.epsilon = finding.pooled = None
    return finding


def _read(path: Path, finding: Finding) -> tuple[list[tuple], tuple | None]:  # type: ignore[type-arg]
    """(entries in order of their sequence numbers, the recorded head)."""
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            (state,) = connection.execute("PRAGMA integrity_check").fetchone()
            if state != "ok":
                finding.problems.append("the file is damaged")
            rows = connection.execute(
                "SELECT seq, kind, body, prev, hash FROM entries ORDER BY seq"
            ).fetchall()
            return rows, connection.execute("SELECT seq, hash FROM head").fetchone()
        finally:
            connection.close()
    except sqlite3.DatabaseError:
        finding.problems.append(
            "the file is not a readable ledger: truncated, damaged or something else"
        )
        return [], None


def _check_chain(rows: list[tuple], finding: Finding) -> list[str]:  # type: ignore[type-arg]
    prev, hashes = "0" * 64, []
    for position, (seq, kind, body, before, digest) in enumerate(rows):
        text = json.dumps([seq, kind, body, before], sort_keys=True, separators=(",", ":")).encode()
        if seq != position:
            finding.problems.append(
                f"entry {position} is missing or out of order (found sequence number {seq})"
            )
        if before != prev or hashlib.sha256(text).hexdigest() != digest:
            finding.problems.append(f"entry {seq} was edited, moved, or follows an entry that was")
        prev = digest
        hashes.append(digest)
    return hashes


def _check_entries(rows: list[tuple], finding: Finding) -> None:  # type: ignore[type-arg]
    try:
        bodies = [(kind, json.loads(body)) for _, kind, body, _, _ in rows]
        unknown = [
            position
            for position, (kind, body) in enumerate(bodies)
            if set(body) != _fields(kind, body)
        ]
        if unknown or not bodies or [kind for kind, _ in bodies].index("genesis") != 0:
            finding.problems.append(
                f"entries of an unknown kind or with unknown fields: {unknown[:5]}, or no first entry"
            )
            return
        plan = Plan.from_json(bodies[0][1]["plan"])
        _check_prepaid(plan, finding)
        _check_batches(plan, finding)
        _check_adversary(bodies, finding)
        _check_certificate(bodies[0][1], plan, finding)
        _check_counts(bodies, plan, finding)
    except (KeyError, TypeError, ValueError, AttributeError, LabelwallError) as error:
        finding.problems.append(f"an entry can not be understood ({type(error).__name__})")


def _fields(kind: str, body: dict[str, Any]) -> set[str] | None:
    """The fields that an entry has, none more and none less."""
    return GENESIS_ALONE if kind == "genesis" and body.get("format") == 2 else KNOWN.get(kind)


def _check_adversary(bodies: list[tuple[str, dict[str, Any]]], finding: Finding) -> None:
    """Against whom the certificate holds, and whether the entries are those of a budget, or of a register of analysts."""
    finding.adversary = bodies[0][1].get("adversary", POOLED)
    if bodies[0][1]["format"] == 2 and not (
        finding.adversary == EACH or is_alone(finding.adversary)
    ):
        finding.problems.append(
            "the first entry names an adversary that no certificate is made for"
        )
    later = {kind for kind, _ in bodies[1:]}
    if later - {"analyst"} if finding.adversary == EACH else "analyst" in later:
        finding.problems.append(
            "a register of analysts holds other entries, or another ledger holds a register's"
        )
    entered = [(body["name"], body["dataset"]) for kind, body in bodies if kind == "analyst"]
    finding.analysts = dict(entered)
    if len({name for name, _ in entered}) < len(entered) or len(
        {dataset for _, dataset in entered}
    ) < len(entered):
        finding.problems.append("a register names an analyst, or a ledger, twice")


def _check_certificate(genesis: dict, plan: Plan, finding: Finding) -> None:  # type: ignore[type-arg]
    finding.dataset, finding.unsafe, finding.delta, finding.budget = (
        genesis["dataset"],
        genesis["unsafe"],
        plan.delta,
        plan.epsilon,
    )
    if genesis["format"] not in (1, 2):
        finding.problems.append(f"format {genesis['format']} is unknown")
    if genesis["unsafe"] is not False:
        finding.problems.append("noise came from a test tape (unsafe): epsilon is infinite")
        return
    finding.certificates = {
        name: round_up(c.epsilon) for name, c in certificates(plan).items() if c.certified
    }
    exact = certified_epsilon(plan)
    finding.epsilon = round_up(exact)
    if finding.analysts:
        finding.pooled = round_up(certified_epsilon(plan.pooled(len(finding.analysts))))
    if exact > plan.epsilon:
        finding.problems.append("the plan's caps cost more than its budget")


def _check_prepaid(plan: Plan, finding: Finding) -> None:
    """One charge that answers without end is sound for individual budgets alone, and where it costs the whole of them."""
    for slot, entry in enumerate(plan.slots):
        for release in entry.releases:
            whole = release.curve == "zcdp" and release.parameters == {
                "rho": entry.mechanism.get("rho")
            }
            sound = (
                entry.mechanism.get("kind") == PREPAID_KIND
                and whole
                and len(entry.releases) == 1
                and release.cap == 1
            )
            if release.prepaid and not sound:
                finding.problems.append(
                    f"release {release.name!r} of slot {slot} is charged once, but its mechanism is not"
                )
            if not release.prepaid and entry.mechanism.get("kind") == PREPAID_KIND:
                finding.problems.append(
                    f"release {release.name!r} of slot {slot} should be charged once and in full"
                )


def _check_batches(plan: Plan, finding: Finding) -> None:
    """One charge for many queries is sound where the mechanism itself splits an epsilon over them, and costs just that."""
    for slot, entry in enumerate(plan.slots):
        for release in entry.releases:
            whole = release.curve == "pure" and release.parameters == {
                "epsilon": entry.mechanism.get("epsilon")
            }
            known = entry.mechanism.get("kind") in BATCH_KINDS
            if release.batch and not (known and whole and len(entry.releases) == 1):
                finding.problems.append(
                    f"release {release.name!r} of slot {slot} is charged by the batch, but its mechanism is not"
                )
            if known and not release.batch:
                finding.problems.append(
                    f"release {release.name!r} of slot {slot} should be charged by the batch"
                )


def _check_counts(bodies: list[tuple], plan: Plan, finding: Finding) -> None:  # type: ignore[type-arg]
    caps = {(slot, r.name): r.cap for slot, entry in enumerate(plan.slots) for r in entry.releases}
    prepaid = {
        (slot, r.name) for slot, entry in enumerate(plan.slots) for r in entry.releases if r.prepaid
    }
    whole = prepaid | {
        (slot, r.name) for slot, entry in enumerate(plan.slots) for r in entry.releases if r.batch
    }
    outcomes = {
        (slot, r.name)
        for slot, e in enumerate(plan.slots)
        for r in e.releases
        if r.curve in ONE_OUTCOME
    }
    charged: Counter[tuple[int, str]] = Counter()
    released: Counter[tuple[int, str]] = Counter()
    open_charges: dict[int, tuple[tuple[int, str], int]] = {}
    seen: set[tuple[str, str]] = set()
    for seq, (kind, body) in enumerate(bodies):
        if kind == "charge":
            key = body["slot"], body["release"]
            charged[key] += body["count"]
            open_charges[seq] = key, body["count"]
            if key not in caps or body["count"] < 1 or charged[key] > caps[key]:
                finding.problems.append(
                    f"entry {seq} charges past the cap of {key[1]!r} in slot {key[0]}, or for something unplanned"
                )
        elif kind == "release":
            if body["charge"] not in open_charges:
                finding.problems.append(f"entry {seq} releases without an unused charge before it")
                continue
            key, paid = open_charges[body["charge"]]
            if key not in prepaid:
                del open_charges[body["charge"]]
            released[key] += len(body["results"])
            again = [identity for identity in body["results"] if (identity, key[1]) in seen]
            seen.update((identity, key[1]) for identity in body["results"])
            if (len(body["results"]) > paid and key not in whole) or again:
                finding.problems.append(
                    f"entry {seq} releases more than it paid for, or the same query twice"
                )
            if not all(_fits(value, key in outcomes) for value in body["results"].values()):
                finding.problems.append(
                    f"entry {seq} releases something else than its curve prices"
                )
        elif kind == "refusal" and (
            charged[body["slot"], body["release"]] != caps.get((body["slot"], body["release"]))
            or (body["slot"], body["release"]) in prepaid
        ):
            finding.problems.append(f"entry {seq} refuses although its cap was not reached")
    finding.charged = {f"{slot}/{name}": count for (slot, name), count in charged.items()}
    finding.released = {f"{slot}/{name}": count for (slot, name), count in released.items()}


def _fits(value: object, one_outcome: bool) -> bool:
    """Whether a released value is an integer, or, where not just a bit or a winner is priced, a list of integers."""
    listed = type(value) is list and bool(value) and all(type(entry) is int for entry in value)
    return type(value) is int or (listed and not one_outcome)
