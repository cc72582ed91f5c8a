"""The auditor: recompute a certificate from a ledger file alone, trusting nothing of the program
that wrote it.

Shares the curves and certificates and the plan's type with the teacher, and nothing else. The file
and its chain, the form of the entries, what each mechanism releases at which price, the order, the
caps and the results are checked here a second time, from the text of the entries, on purpose.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ....wall.errors import LabelwallError, MissingData
from ....wall.guarantee import EACH, Unit, for_unit
from ...accounting.accountant import certificates, certified_epsilon, explain
from ...accounting.conversion import round_up
from ...accounting.plan import Plan
from ...accounting.risk import Risk, risks, table
from .mechanisms import BY_QUERY, ONCE, PricedRelease, check_plan
from .reading import Problem, Stored, canonical, check_extractor, read_entry, read_file, shown
from .released_values import is_sum

MAX_PROBLEMS = 20  # lines; the others are counted

Body = Mapping[str, Any]
Entry = tuple[str, dict[str, Any]]  # kind and body
Key = tuple[int, str]  # a slot of the plan and the name of one of its releases


@dataclass
class Finding:
    """The result of an audit of one ledger; findings of two ledgers can not be joined to one.

    ``epsilon``: of the recorded plan, None where nothing is certified, against ``adversary``, for
    a ``unit``, a row or a person with all its rows. ``analysts``: of a register, from a name to the
    data set of the analyst's ledger; ``pooled``: the epsilon against all of them together.
    ``periods``: [releases charged, releases left, epsilon of the plan up to it] of each.
    ``charged``, ``released``: counts, by "slot/release". ``problems``: one line each.
    ``explanation``: the arithmetic from the releases to epsilon, where it was asked for. ``plan``:
    what was priced, None where nothing is certified.
    """

    epsilon: float | None = None
    delta: float | None = None
    budget: float | None = None
    entries: int = 0
    head: str = ""
    dataset: str = ""
    unsafe: bool = False
    adversary: str = ""
    unit: Unit = "row"
    analysts: dict[str, str] = field(default_factory=dict)
    pooled: float | None = None
    certificates: dict[str, float] = field(default_factory=dict)
    charged: dict[str, int] = field(default_factory=dict)
    released: dict[str, int] = field(default_factory=dict)
    periods: list[list[float]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    explanation: list[str] = field(default_factory=list)
    plan: Plan | None = field(default=None, repr=False)

    @property
    def consistent(self) -> bool:
        return not self.problems

    def risks(self) -> list[Risk]:
        """What the plan means for a person; none where nothing is certified. Takes seconds."""
        return [] if self.plan is None else risks(self.plan)

    def to_json(self) -> dict[str, object]:
        shown = {name: value for name, value in vars(self).items() if name != "plan"}
        return {**shown, "consistent": self.consistent, "risks": [*map(asdict, self.risks())]}

    def render(self) -> str:
        """The finding as text."""
        certified = "nothing"
        if self.epsilon is not None:
            certified = f"epsilon {self.epsilon:.3f} at delta {self.delta:g}{for_unit(self.unit)}"
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
        if self.plan is not None and not self.charged:
            lines.append("  nothing was charged yet: epsilon is what the plan may come to")
        for number, (spent, left, epsilon) in enumerate(self.periods, start=1):
            counts = f"{spent:g} releases charged, {left:g} left"
            lines.append(f"  period {number}: {counts}; epsilon {epsilon:.3f} up to it")
        if found := self.risks():
            lines += table(found, self.unit)
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
        finding.epsilon, finding.pooled, finding.certificates, finding.plan = None, None, {}, None
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
        history = AuditedHistory(genesis["plan"], restated)
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
    finding.epsilon, finding.plan = round_up(smallest), plan
    for period in range(1, plan.periods + 1) if plan.periods > 1 else ():
        slots = [slot for slot in range(len(plan.slots)) if plan.period_of(slot) == period]
        names = [(slot, release) for slot in slots for release in plan.slots[slot].releases]
        spent = sum(finding.charged.get(f"{slot}/{release.name}", 0) for slot, release in names)
        left = sum(release.cap for _, release in names) - spent
        epsilon = round_up(certified_epsilon(plan.up_to(period)))
        finding.periods.append([spent, left, epsilon])
    if not smallest <= plan.epsilon:
        finding.problems.append("the plan's caps cost more than its budget")


class AuditedHistory:
    """The sums of the entries after the first, whose order is checked: what is paid, released and
    refused.

    A charge pays for draws, and one release records what a charge paid for. No query has two
    results under one name. A query reaches a mechanism's second release only by a 1 from its
    screening. A refusal is stored where the cap is reached, and ends a query. It may name a query
    that was answered: by another process, after the refusing one had seen that it was due.

    ``plan``: as the first entry records it. ``restated``: its slots' releases. ``charged``,
    ``released``: counts by release.
    """

    def __init__(self, plan: Body, restated: Sequence[Sequence[PricedRelease]]) -> None:
        self.charged: Counter[Key] = Counter()
        self.released: Counter[Key] = Counter()
        # with its cap, and the screening that leads to it
        self._planned: dict[Key, tuple[PricedRelease, int, str | None]] = {}
        self._mechanism = [canonical(slot["mechanism"]) for slot in plan["slots"]]
        self._open: dict[int, tuple[Key, int, str]] = {}  # with the extractor in use
        self._results: dict[str, dict[str, Any]] = {}
        self._asked: dict[str, str] = {}  # identity -> the mechanism that was asked
        self._refused: set[str] = set()
        self._extractor = ""
        self._widths: set[int] = set()
        self._sums: dict[str, int] = {}  # extractor -> length of its sums
        self._largest_label = -1
        for slot, (planned, releases) in enumerate(zip(plan["slots"], restated, strict=True)):
            previous = None
            for recorded, release in zip(planned["releases"], releases, strict=True):
                self._planned[slot, release.name] = release, recorded["cap"], previous
                previous = release.name

    def take(self, seq: int, kind: str, body: Body) -> None:
        """Check the next entry and add it up. Raises Problem."""
        if kind == "charge":
            self._charge(seq, body)
        elif kind == "release":
            self._release(body)
        elif kind == "refusal":
            self._refuse(body)
        elif kind == "extractor":
            if body["sha256"] == self._extractor:
                raise Problem("names the extractor that is in use already")
            self._extractor = body["sha256"]
        else:
            raise Problem(f"of the kind {kind!r} is misplaced: a ledger has one first entry")

    def finish(self) -> None:
        """Check what only all entries together show. Raises Problem."""
        if len(self._widths) > 1:
            raise Problem(f"results show different numbers of classes: {sorted(self._widths)[:5]}")
        if self._widths and self._largest_label >= min(self._widths):
            raise Problem(f"a label is {self._largest_label}, of {min(self._widths)} classes")
        for length in sorted({*self._sums.values()}):
            if not all(is_sum(length, range(w, w + 1)) for w in self._widths):
                raise Problem(f"a sum of {length} numbers is not of {min(self._widths)} classes")

    def _key(self, body: Body) -> Key:
        key = body["slot"], body["release"]
        if key not in self._planned:
            raise Problem(f"is for something unplanned: {shown(key[1])} in slot {key[0]}")
        return key

    def _charge(self, seq: int, body: Body) -> None:
        key, count = self._key(body), body["count"]
        priced, cap, _ = self._planned[key]
        if not self._extractor:
            raise Problem("charges before an extractor was named")
        if priced.charging != BY_QUERY and count != 1:
            raise Problem(f"charges {count} where one charge pays for all")
        self.charged[key] += count
        self._open[seq] = key, count, self._extractor
        if self.charged[key] > cap:
            raise Problem(f"charges past the cap of {key[1]!r} in slot {key[0]}")

    def _release(self, body: Body) -> None:
        if body["charge"] not in self._open:
            raise Problem("releases without an unused charge before it")
        key, paid, extractor = self._open[body["charge"]]
        (priced, _, _), results = self._planned[key], body["results"]
        if priced.charging != ONCE:
            del self._open[body["charge"]]
        self.released[key] += len(results)
        if priced.charging == BY_QUERY and len(results) != paid:
            raise Problem(
                f"releases {len(results)} results, more or fewer than it paid for: {paid}"
            )
        for identity, value in results.items():
            if key[1] in self._asked_for(identity, key):
                raise Problem(f"releases the same query twice: {identity}")
            if identity in self._refused:
                raise Problem(f"releases a query that was refused: {identity}")
            self._results.setdefault(identity, {})[key[1]] = value
            self._check(priced, value, len(results), extractor)

    def _asked_for(self, identity: str, key: Key) -> dict[str, Any]:
        """A query's results so far. Raises Problem unless it may come to this release."""
        results, mechanism = self._results.get(identity, {}), self._mechanism[key[0]]
        _, _, screening = self._planned[key]
        if self._asked.setdefault(identity, mechanism) != mechanism:
            raise Problem(f"gives query {identity} to another mechanism than before")
        if screening is not None and results.get(screening) != 1:
            raise Problem(
                f"is for {key[1]!r} of a query that did not pass {screening!r}: {identity}"
            )
        return results

    def _check(self, priced: PricedRelease, value: Any, beside: int, extractor: str) -> None:
        possible = priced.results
        if not possible.holds(value, beside):
            raise Problem(
                f"releases something else than its curve prices: {priced.name!r} must be "
                f"{possible.words}. Found {shown(value)}"
            )
        label, width = possible.label(value), possible.width(value)
        if label is not None:
            self._largest_label = max(self._largest_label, label)
        if width is not None:
            self._widths.add(width)
        if possible.outputs is not None and self._sums.setdefault(extractor, len(value)) != len(
            value
        ):
            raise Problem(f"releases sums of different lengths for the extractor {extractor}")

    def _refuse(self, body: Body) -> None:
        key = self._key(body)
        priced, cap, _ = self._planned[key]
        if priced.charging == ONCE or self.charged[key] != cap:
            raise Problem("refuses although its cap was not reached")
        for identity in body["identities"]:
            self._asked_for(identity, key)
        self._refused.update(body["identities"])
