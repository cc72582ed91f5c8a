"""The auditor: recompute a certificate from a ledger file alone, trusting nothing of the program
that wrote it.

Shares the curves and certificates and the plan's type with the teacher, and nothing else. The file
and its chain, the form of the entries, what each mechanism releases at which price, the order, the
caps and the results are checked here a second time, from the text of the entries, on purpose.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ....wall.errors import LabelwallError, MissingData
from ....wall.guarantee import EACH
from ...accounting.accountant import certificates, certified_epsilon, explain
from ...accounting.conversion import round_up
from ...accounting.plan import Plan
from .history import History
from .mechanisms import check_plan
from .reading import Problem, Stored, check_extractor, read_entry, read_file, shown

MAX_PROBLEMS = 20  # lines; the others are counted

Entry = tuple[str, dict[str, Any]]  # kind and body


@dataclass
class Finding:
    """The result of an audit of one ledger; findings of two ledgers can not be joined to one.

    ``epsilon``: of the recorded plan, None where nothing is certified, against ``adversary``, for
    a ``unit``, a row or a person with all its rows. ``analysts``: of a register, from a name to the
    data set of the analyst's ledger; ``pooled``: the epsilon against all of them together.
    ``periods``: [releases charged, releases left, epsilon of the plan up to it] of each.
    ``charged``, ``released``: counts, by "slot/release". ``problems``: one line each.
    ``explanation``: the arithmetic from the releases to epsilon, where it was asked for.
    """

    epsilon: float | None = None
    delta: float | None = None
    budget: float | None = None
    entries: int = 0
    head: str = ""
    dataset: str = ""
    unsafe: bool = False
    adversary: str = ""
    unit: str = "row"
    analysts: dict[str, str] = field(default_factory=dict)
    pooled: float | None = None
    certificates: dict[str, float] = field(default_factory=dict)
    charged: dict[str, int] = field(default_factory=dict)
    released: dict[str, int] = field(default_factory=dict)
    periods: list[list[float]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    explanation: list[str] = field(default_factory=list)

    @property
    def consistent(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, object]:
        return {**vars(self), "consistent": self.consistent}

    def render(self) -> str:
        """The finding as text."""
        certified = "nothing"
        if self.epsilon is not None:
            certified = f"epsilon {self.epsilon:.3f} at delta {self.delta:g}"
            if self.unit != "row":
                certified += " for persons (all rows of one together)"
        verdict = "consistent" if self.consistent else "NOT CONSISTENT"
        lines = [
            f"{verdict}: {self.entries} entries certify {certified}",
            f"  against {self.adversary or 'an unknown adversary'}",
        ]
        for name, dataset in self.analysts.items():
            lines.append(f"  analyst {name}: ledger of data set {dataset}")
        if self.pooled is not None:
            lines.append(
                f"  if all {len(self.analysts)} pool their answers: epsilon {self.pooled:.3f} "
                f"at delta {self.delta:g}"
            )
        for name, epsilon in sorted(self.certificates.items(), key=lambda item: item[1]):
            lines.append(f"  {name:36} {epsilon:8.3f}")
        for name, count in self.charged.items():
            lines.append(f"  charged {count} x {name}, released {self.released.get(name, 0)}")
        for number, (spent, left, epsilon) in enumerate(self.periods, start=1):
            counts = f"{spent:g} releases charged, {left:g} left"
            lines.append(f"  period {number}: {counts}; epsilon {epsilon:.3f} up to it")
        lines += [f"  problem: {problem}" for problem in self.problems]
        return "\n".join([*lines, f"  head {self.head}", *self.explanation])


def audit(path: Path, *, expect_head: str | None = None, explained: bool = False) -> Finding:
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
    entries = _parsed(stored, finding)
    if entries:
        _check_entries(entries, stored, finding)
    if finding.problems:
        finding.epsilon, finding.pooled, finding.certificates = None, None, {}
    elif explained:
        finding.explanation = explain(Plan.from_json(entries[0][1]["plan"]))
    if len(finding.problems) > MAX_PROBLEMS:
        omitted = len(finding.problems) - MAX_PROBLEMS
        finding.problems[MAX_PROBLEMS:] = [f"and {omitted} problems more"]
    return finding


@contextmanager
def _noted(finding: Finding, where: str = "") -> Iterator[None]:
    """Note a Problem of what is done within as one of the finding."""
    try:
        yield
    except (Problem, LabelwallError) as problem:
        finding.problems.append(f"{where}{problem}")


def _parsed(stored: Stored, finding: Finding) -> list[Entry]:
    """The entries by their schemas, which are checked together where all are valid; else none."""
    entries, before = [], len(finding.problems)
    for seq, (kind, text) in enumerate(stored.entries):
        with _noted(finding, f"entry {seq} "):
            entries.append((kind, read_entry(kind, text)))
    if not stored.entries or stored.entries[0][0] != "genesis":
        finding.problems.append("there is no first entry, which names the plan")
    if any(kind == "genesis" for kind, _ in stored.entries[1:]):
        finding.problems.append("there is a second first entry: a ledger has one plan")
    return entries if len(finding.problems) == before else []


def _check_entries(entries: list[Entry], stored: Stored, finding: Finding) -> None:
    """Check valid entries together, and price their plan where there is no other problem."""
    genesis, problems = entries[0][1], finding.problems
    finding.dataset, finding.unsafe = genesis["dataset"], genesis["unsafe"]
    finding.adversary = genesis["adversary"]
    _check_extractors(entries, stored.extractors, finding)
    _check_adversary(entries, finding)
    try:
        restated = check_plan(genesis["plan"])
        plan = Plan.from_json(genesis["plan"])
    except (Problem, LabelwallError) as problem:
        problems.append(f"entry 0: {problem}")
        return
    finding.delta, finding.budget, finding.unit = plan.delta, plan.epsilon, plan.unit
    if finding.unsafe:
        problems.append("noise came from a test tape (unsafe): epsilon is infinite")
    if finding.adversary != EACH:
        history = History(genesis["plan"], restated)
        for seq, (kind, body) in enumerate(entries[1:], start=1):
            with _noted(finding, f"entry {seq} "):
                history.take(seq, kind, body)
        with _noted(finding):
            history.finish()
        finding.charged = {f"{slot}/{name}": n for (slot, name), n in history.charged.items()}
        finding.released = {f"{slot}/{name}": n for (slot, name), n in history.released.items()}
    if not problems:
        _check_certificate(plan, finding)


def _check_extractors(
    entries: list[Entry], stored: list[tuple[str, str]], finding: Finding
) -> None:
    """Check that the fields of each extractor that is named by its hash are in the file, once."""
    named = {body["sha256"] for kind, body in entries if kind == "extractor"}
    present = {sha256 for sha256, _ in stored}
    if len(present) < len(stored):
        finding.problems.append("the file holds the fields of an extractor twice")
    for sha256 in sorted(named - present):
        finding.problems.append(f"extractor {sha256} is named, and its fields are not in the file")
    for sha256, text in sorted(stored):
        with _noted(finding, f"extractor {shown(sha256)} "):
            if sha256 not in named:
                raise Problem("is in the file, and no entry names it")
            check_extractor(sha256, text)


def _check_adversary(entries: list[Entry], finding: Finding) -> None:
    """Check that the entries are those of a budget, or those of a register of analysts."""
    later = {kind for kind, _ in entries[1:]}
    if later - {"analyst"} if finding.adversary == EACH else "analyst" in later:
        finding.problems.append(
            "a register of analysts holds other entries, or another ledger holds a register's"
        )
    entered = [(body["name"], body["dataset"]) for kind, body in entries if kind == "analyst"]
    finding.analysts = dict(entered)
    if len({*finding.analysts.values()}) < len(entered):  # a name that is there twice keeps one
        finding.problems.append("a register names an analyst, or a ledger, twice")


def _check_certificate(plan: Plan, finding: Finding) -> None:
    """Price the plan's caps. It may take long, so only for a ledger without other problems."""
    try:
        epsilons = {name: c.epsilon for name, c in certificates(plan).items()}
        if finding.analysts:
            finding.pooled = round_up(certified_epsilon(plan.pooled(len(finding.analysts))))
    except (LabelwallError, ArithmeticError, ValueError, MemoryError) as error:
        finding.problems.append(f"the plan can not be priced ({type(error).__name__})")
        return
    finding.certificates = {name: round_up(epsilon) for name, epsilon in epsilons.items()}
    smallest = min(epsilons.values())
    finding.epsilon = round_up(smallest)
    for period in range(1, plan.periods + 1) if plan.periods > 1 else ():
        slots = [slot for slot in range(len(plan.slots)) if plan.period_of(slot) == period]
        names = [(slot, release) for slot in slots for release in plan.slots[slot].releases]
        spent = sum(finding.charged.get(f"{slot}/{release.name}", 0) for slot, release in names)
        left = sum(release.cap for _, release in names) - spent
        epsilon = round_up(certified_epsilon(plan.up_to(period)))
        finding.periods.append([spent, left, epsilon])
    if not smallest <= plan.epsilon:
        finding.problems.append("the plan's caps cost more than its budget")
