"""The auditor: recompute a certificate from a ledger file alone, trusting nothing of the program
that wrote it.

Shares the curve functions and the plan's type with the teacher, and nothing else. The file and its
chain, the form of the entries, what each mechanism releases at which price, the order, the caps and
the results are checked here a second time, from the text of the entries, on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labelwall.teacher.accounting.accountant import certificates, certified_epsilon
from labelwall.teacher.accounting.conversion import round_up
from labelwall.teacher.accounting.plan import Plan
from labelwall.teacher.ledger.auditor.entries import check_plan, read_entry
from labelwall.teacher.ledger.auditor.file import read_file
from labelwall.teacher.ledger.auditor.history import History
from labelwall.teacher.ledger.auditor.mechanisms import Priced
from labelwall.teacher.ledger.auditor.values import Problem
from labelwall.wall.adversary import EACH, POOLED
from labelwall.wall.errors import LabelwallError, MissingData

MOST_PROBLEMS = 20  # lines; the rest is counted

Entry = tuple[str, dict[str, Any]]  # kind and body


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
    """Replay an exported (or live) ledger: file, chain, entries, prices, order, caps, certificate.

    ``expect_head``: hash of an entry (from a receipt or a summary) that must stand in the chain.
    Raises MissingData where there is no file; whatever is wrong inside it is a problem in the
    finding, which then certifies nothing.
    """
    if not path.is_file():
        raise MissingData(f"there is no ledger at {path}.")
    stored, finding = read_file(path), Finding()
    finding.problems, hashes = stored.problems, stored.hashes
    finding.entries, finding.head = len(hashes), hashes[-1] if hashes else ""
    if expect_head is not None and expect_head not in hashes:
        finding.problems.append(
            "the expected head is not in the chain: this copy is older than it, or another ledger"
        )
    _check_entries(stored.entries, finding)
    if finding.problems:
        finding.epsilon, finding.pooled, finding.certificates = None, None, {}
    if len(finding.problems) > MOST_PROBLEMS:
        left_out = len(finding.problems) - MOST_PROBLEMS
        finding.problems[MOST_PROBLEMS:] = [f"and {left_out} problems more"]
    return finding


def _check_entries(stored: list[tuple[str, str]], finding: Finding) -> None:
    """Every entry by its schema; then, where each is one, what they say together."""
    entries, before = _parsed(stored, finding), len(finding.problems)
    if not stored or stored[0][0] != "genesis":
        finding.problems.append("there is no first entry, which names the plan")
    if any(kind == "genesis" for kind, _ in stored[1:]):
        finding.problems.append("there is a second first entry: a ledger has one plan")
    if len(entries) < len(stored) or len(finding.problems) > before:
        return
    genesis = entries[0][1]
    finding.dataset, finding.unsafe = genesis["dataset"], genesis["unsafe"]
    finding.adversary = genesis.get("adversary", POOLED)
    _check_adversary(entries, finding)
    try:
        restated = check_plan(genesis["plan"])
        plan = Plan.from_json(genesis["plan"])
    except (Problem, LabelwallError) as problem:
        finding.problems.append(f"entry 0: {problem}")
        return
    finding.delta, finding.budget = plan.delta, plan.epsilon
    if finding.unsafe:
        finding.problems.append("noise came from a test tape (unsafe): epsilon is infinite")
    if finding.adversary != EACH:
        _check_history(entries, restated, finding)
    if not finding.problems:
        _check_certificate(plan, finding)


def _parsed(stored: list[tuple[str, str]], finding: Finding) -> list[Entry]:
    """The entries that can be understood; the others are problems."""
    entries = []
    for seq, (kind, text) in enumerate(stored):
        try:
            entries.append((kind, read_entry(kind, text)))
        except Problem as problem:
            finding.problems.append(f"entry {seq} {problem}")
    return entries


def _check_adversary(entries: list[Entry], finding: Finding) -> None:
    """Whether the entries are those of a budget, or of a register of analysts."""
    later = {kind for kind, _ in entries[1:]}
    if later - {"analyst"} if finding.adversary == EACH else "analyst" in later:
        finding.problems.append(
            "a register of analysts holds other entries, or another ledger holds a register's"
        )
    entered = [(body["name"], body["dataset"]) for kind, body in entries if kind == "analyst"]
    names, datasets = {name for name, _ in entered}, {dataset for _, dataset in entered}
    finding.analysts = dict(entered)
    if len(names) < len(entered) or len(datasets) < len(entered):
        finding.problems.append("a register names an analyst, or a ledger, twice")


def _check_certificate(plan: Plan, finding: Finding) -> None:
    """The price of the plan's caps. Last, and of a ledger without problems alone: it may take long."""
    try:
        found = {name: c.epsilon for name, c in certificates(plan).items() if c.certified}
        exact = min(found.values())
        if finding.analysts:
            finding.pooled = round_up(certified_epsilon(plan.pooled(len(finding.analysts))))
    except (LabelwallError, ArithmeticError, ValueError, MemoryError) as error:
        finding.problems.append(f"the plan can not be priced ({type(error).__name__})")
        return
    finding.certificates = {name: round_up(epsilon) for name, epsilon in found.items()}
    finding.epsilon = round_up(exact)
    if not exact <= plan.epsilon:
        finding.problems.append("the plan's caps cost more than its budget")


def _check_history(entries: list[Entry], restated: list[list[Priced]], finding: Finding) -> None:
    """What was paid, released and refused, entry by entry."""
    history = History(entries[0][1]["plan"], restated)
    for seq, (kind, body) in enumerate(entries[1:], start=1):
        try:
            history.take(seq, kind, body)
        except Problem as problem:
            finding.problems.append(f"entry {seq} {problem}")
    try:
        history.finish()
    except Problem as problem:
        finding.problems.append(str(problem))
    finding.charged = {f"{slot}/{name}": n for (slot, name), n in history.charged.items()}
    finding.released = {f"{slot}/{name}": n for (slot, name), n in history.released.items()}
