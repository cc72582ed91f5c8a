"""SIGKILL a ledger's process before every statement of a charge and a record under an anchor. Then
the ledger and an earlier copy of it try to continue, in both orders (kill_runner.py)."""

import sys
from pathlib import Path

from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.ledger.url import LedgerUrl, Place
from labelwall.wall.errors import LedgerMismatch
from tests.ledgers import created
from tests.postgres import DATABASE, OWNER, copied, rows, swept
from tests.programs.kill_runner import is_finished, killed_before, sweep

WATCHED = ("ledger.py", "anchor.py", "database.py")


def answer(place: Place, anchor: Place, query: str, notes: Path | None = None) -> bool:
    """Whether the anchor allowed it. ``notes``: a durable list of what was drawn and sent."""

    def note(what: str) -> None:
        if notes is not None:
            with notes.open("a") as file:
                file.write(what)

    try:
        ledger = Ledger(place, anchor)
        charge = ledger.charge(0, "screen", [query])
        note("drawn ")
        ledger.record(charge, {query: 1})
        note("sent ")
    except LedgerMismatch as error:
        if "anchor" not in str(error):
            raise
        return False
    return True


def kill(folder: Path, point: int, socket: str, anchor_socket: str) -> tuple[bool, dict]:
    """One kill and what it left; the two orders take turns."""
    place, notes = swept(folder, socket), folder / "notes"
    name, copy_first = f"{folder.parent.name}_{point}", point // int(sys.argv[2]) % 2 == 1
    anchor: Place = folder / "anchor"
    if anchor_socket:
        anchor = LedgerUrl(OWNER, DATABASE, f"anchor_{name}", socket=anchor_socket)
    created(place, 20, anchor=anchor)
    assert answer(place, anchor, "first")
    copy = copied(place, f"copy_{name}")

    def doomed() -> None:
        with killed_before(point, "teacher/ledger", WATCHED):
            answer(place, anchor, "doomed", notes)

    finished = is_finished(doomed)
    ahead = len(rows(place, "SELECT * FROM entries")) > len(rows(copy, "SELECT * FROM entries"))
    first, second = (copy, place) if copy_first else (place, copy)
    asked = (first, "a"), (second, "b"), (first, "c")
    return finished, {
        "copy_first": copy_first,
        "ahead": ahead,
        "noted": notes.read_text().split() if notes.exists() else [],
        "went_on": [answer(here, anchor, query) for here, query in asked],
    }


if __name__ == "__main__":
    sweep(kill)
