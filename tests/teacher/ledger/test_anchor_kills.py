"""Copies of a ledger under one anchor, killed at any time: all that is seen is one chain."""

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from labelwall.teacher.ledger import anchor as anchor_file
from labelwall.teacher.ledger.anchor import Anchor
from labelwall.teacher.ledger.ledger import Charge, Ledger
from labelwall.wall.errors import LedgerMismatch
from tests.ledgers import created
from tests.programs.kill_runner import kills
from tests.teacher.ledger.test_anchor import fork, goes_on, in_use, is_refused, stored

T = TypeVar("T")
ONE = st.integers(0, 3)
# What is called, and whether it is done before the end.
STEPS: dict[str, tuple[object, str, bool]] = {
    "appended": (Ledger, "_append", True),
    "not committed": (anchor_file, "take_nonce", True),
    "committed": (anchor_file, "move", False),
    "written": (anchor_file, "move", True),
    "moved": (Anchor, "locked", True),
}


class Killed(BaseException):
    """Ends a process's work where a SIGKILL would."""


@contextmanager
def killed_at(step):
    """End the work inside: after an entry, before the commit, or around or within the move."""
    owner, name, after = STEPS[step]
    real = getattr(owner, name)

    def doomed(*args):
        if after:
            real(*args)
        raise Killed

    @contextmanager
    def doomed_when_unlocked(*args):
        with real(*args) as locked:
            yield locked
        raise Killed

    with pytest.MonkeyPatch.context() as patched, suppress(Killed):
        patched.setattr(owner, name, doomed_when_unlocked if name == "locked" else doomed)
        yield


@pytest.mark.parametrize(
    ("step", "copy_first", "late", "recorded"),
    [
        ("appended", False, False, False),
        ("appended", True, False, True),
        ("not committed", True, False, False),
        ("committed", False, False, False),
        ("committed", True, True, False),
        ("committed", True, False, True),
        ("written", False, True, True),
        pytest.param("written", True, False, False, marks=pytest.mark.slow),
        pytest.param("committed", False, True, False, marks=pytest.mark.slow),
        pytest.param("committed", False, False, True, marks=pytest.mark.slow),
        pytest.param("committed", True, True, True, marks=pytest.mark.slow),
    ],
)
def test_killed_around_the_commit(place, anchor, step, copy_first, late, recorded):
    """The first copy to write continues. A ``late`` one has the entry that the anchor has not."""
    ledger = Ledger(in_use(place, anchor), anchor)
    charge = ledger.charge(0, "screen", ["a"]) if recorded else None
    copy, entries = fork(place), len(stored(place))
    with killed_at(step):
        ledger.record(charge, {"a": 1}) if charge else ledger.charge(0, "screen", ["a"])
    if late:
        copy = fork(place)
    assert len(stored(place)) == entries + (step in ("committed", "written"))
    first, second = (copy, place) if copy_first else (place, copy)
    goes_on(Ledger(first, anchor), "b")
    is_refused(second, anchor)
    goes_on(Ledger(first, anchor), "c")


def test_the_same_entry_written_by_two_copies_is_not_the_same_nonce(place, anchor):
    """Their hashes are equal, and what they reserved in private may differ."""
    copy = fork(in_use(place, anchor))
    for here in (place, copy):
        ledger = Ledger(here, anchor)
        with killed_at("committed"):
            ledger.charge(0, "screen", ["a"])
    assert stored(place) == stored(copy)
    Ledger(place, anchor)
    is_refused(copy, anchor)


def test_what_the_anchor_does_not_have_yet_is_anchored_before_it_is_read(place, anchor, tmp_path):
    """Otherwise a stored answer could be sent, and another copy could still draw it again."""
    ledger = Ledger(in_use(place, anchor), anchor)
    readers: list[Callable[[Ledger], object]] = [
        lambda opened: opened.in_custody(lambda _: None),
        lambda opened: opened.export(tmp_path / "export.sqlite"),
        lambda opened: opened.catch_up(),
    ]
    for number, read in enumerate(readers):
        other, charge = Ledger(place, anchor), ledger.charge(0, "screen", [f"a{number}"])
        copy = fork(place)
        with killed_at("committed"):
            ledger.record(charge, {f"a{number}": 1})
        read(other)
        is_refused(copy, anchor)


@dataclass
class Copy:
    """A copy of the ledger and its process, with what that has drawn and not recorded."""

    path: Path
    ledger: Ledger | None = None
    drawn: list[tuple[Charge, str]] = field(default_factory=list)


class Forks(RuleBasedStateMachine):
    """Up to four copies. ``drawn``, ``seen``: the chain of hashes behind each draw and read."""

    @initialize()
    def begin(self):
        # In memory where possible: no waiting for a disk.
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.anchor, self.queries = self.folder / "anchor.json", 0
        self.drawn: list[list[str]] = []
        self.seen: list[list[str]] = []
        path = self.folder / "0"
        created(path, 1000, anchor=self.anchor)
        self.copies, self.all_there = [Copy(path)], True

    def teardown(self):
        """As long as no copy was overwritten, one of them goes on; afterwards no other does."""
        went_on = [
            self._do(Copy(copy.path), lambda ledger: ledger.charge(0, "screen", ["last"]))
            for copy in self.copies
        ]
        assert sum(found is not None for found in went_on) == 1 or not self.all_there
        shutil.rmtree(self.folder)

    @rule(number=ONE)
    def copy(self, number):
        path = self.folder / str(len(self.copies))
        if len(self.copies) < 4:
            shutil.copyfile(self.copies[number % len(self.copies)].path, path)
            self.copies.append(Copy(path))

    @rule(number=ONE)
    def restore(self, number):
        """A copy put in the place of another one, below a living process."""
        source = self.copies[number % len(self.copies)]
        target = self.copies[(number + 1) % len(self.copies)]
        if source is not target:
            shutil.copyfile(source.path, target.path)
            self.all_there = False

    @rule(number=ONE)
    def restart(self, number):
        chosen = self.copies[number % len(self.copies)]
        chosen.ledger, chosen.drawn = None, []

    @rule(number=ONE, step=st.none() | st.sampled_from(sorted(STEPS)))
    def charge(self, number, step):
        """Where the process dies, the charge may be committed and anchored, and is not drawn."""
        chosen, query = self.copies[number % len(self.copies)], f"q{self.queries}"
        self.queries, charge = self.queries + 1, None
        with killed_at(step) if step else nullcontext():
            charge = self._do(chosen, lambda ledger: ledger.charge(0, "screen", [query]))
        if charge is not None and step is None:
            chosen.drawn.append((charge, query))
            self.drawn.append(list(chosen.ledger.state.hashes))
            # Each charge is drawn once.
            assert len({chain[-1] for chain in self.drawn}) == len(self.drawn)

    @rule(number=ONE, step=st.none() | st.sampled_from(sorted(STEPS)))
    @precondition(lambda self: any(copy.drawn for copy in self.copies))
    def record(self, number, step):
        drawing = [copy for copy in self.copies if copy.drawn]
        chosen = drawing[number % len(drawing)]
        charge, query = chosen.drawn.pop()
        with killed_at(step) if step else nullcontext():
            self._do(chosen, lambda ledger: ledger.record(charge, {query: 1}))

    @rule(number=ONE)
    def read(self, number):
        chosen = self.copies[number % len(self.copies)]
        self._do(chosen, lambda ledger: ledger.in_custody(lambda _: None))

    def _do(self, chosen, work):
        """What the copy's process finds, None where it is refused; all it knows is on one chain."""
        try:
            if chosen.ledger is None:
                chosen.ledger = Ledger(chosen.path, self.anchor)
            found = work(chosen.ledger)
            chosen.ledger.analysts()
        except LedgerMismatch:
            return None
        except Killed:
            chosen.ledger, chosen.drawn = None, []
            raise
        self.seen.append(list(chosen.ledger.state.hashes))
        longest = max(self.seen + self.drawn, key=len)
        assert all(chain == longest[: len(chain)] for chain in self.seen + self.drawn)
        return found


TestForks = pytest.mark.slow(Forks.TestCase)
TestForks.settings = settings(max_examples=50, stateful_step_count=30)


@pytest.mark.slow
@pytest.mark.parametrize("anchor", ["file", "server"])
def test_kill_before_statements_under_an_anchor(tmp_path, socket, anchor, request):
    """Every fifth statement for files, fewer on a server; the two orders take turns."""
    anchor_socket = str(request.getfixturevalue("postgres").home) if anchor == "server" else ""
    stride = 29 if socket or anchor_socket else 5
    root = tmp_path / f"forks_{bool(socket):d}_{anchor}"
    found = kills("fork_sweep", root, stride, socket, anchor_socket)
    assert len(found) > (12 if stride > 5 else 60)
    for kill in found:
        first, second, again = kill["went_on"]
        # One of them continues, and the killed process does not decide which.
        assert first != second, kill
        assert again == first, kill
        if not kill["copy_first"]:
            assert first, kill
        if "drawn" in kill["noted"]:
            assert second if kill["copy_first"] else first, kill
    assert found[-1]["noted"] == ["drawn", "sent"]
    if stride == 5:  # the window is met: committed, not yet anchored, and the copy goes on
        assert any(kill["ahead"] and kill["copy_first"] and kill["went_on"][0] for kill in found)
