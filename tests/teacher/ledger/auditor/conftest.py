"""A ledger to forge."""

from pathlib import Path

import pytest

from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.votes import PrivateKnn
from tests.ledgers import identities, use_extractor

MECHANISM = PrivateKnn(k=30, threshold=10, sigma_screen=30.0, sigma_vote=25.0, sample_rate=0.15)
A, B, C, D, E = identities(*"abcde")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """5 of 5 screenings and 3 of 3 aggregations in two batches; one query is refused."""
    plan = Plan(1.0, 1e-5, (Slot(MECHANISM.fields(), MECHANISM.releases(5, 3)),))
    ledger = Ledger.create(tmp_path / "ledger.sqlite", dataset="d", plan=plan, unsafe=False)
    use_extractor(ledger)
    for batch in ([A, B, C], [D, E]):
        ledger.record(ledger.charge(0, "screen", batch), dict.fromkeys(batch, 1))
        charge = ledger.charge(0, "aggregate", batch)
        ledger.record(charge, dict.fromkeys(charge.granted, 7)) if charge.granted else None
    ledger.export(tmp_path / "export.sqlite")
    return tmp_path / "export.sqlite"
