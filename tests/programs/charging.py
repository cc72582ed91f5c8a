"""A process that charges a ledger query by query and records each answer.

Prints the granted queries as JSON.
"""

import json
import sys
from pathlib import Path

from labelwall.teacher.ledger import LedgerUrl, Place
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.wall.messages import ExtractorSpec

NAMES = "{name}{number:063d}"  # of queries, as hexadecimal digits


def place_of(address: str) -> Place:
    return LedgerUrl.parse(address) if "://" in address else Path(address)


def main(address: str, queries: int, name: str, *anchor: str) -> None:
    ledger, granted = Ledger(place_of(address), *map(place_of, anchor)), []
    ledger.use_extractor(ExtractorSpec("raw", (4,), 4).public_fields())
    for number in range(queries):
        query = NAMES.format(name=name, number=number)
        charge = ledger.charge(0, "screen", [query])
        if charge.granted:
            ledger.record(charge, {query: 1})
        granted += charge.granted
    print(json.dumps(granted))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
