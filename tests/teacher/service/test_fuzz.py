"""Mutated requests of every route to a service in a process of its own."""

import pytest

from labelwall.benchmarks.service.request_fuzz import fuzz
from labelwall.teacher.ledger.auditor.auditor import audit


@pytest.mark.parametrize(
    "requests", [200, pytest.param(20_000, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_no_mutant_of_a_request_is_a_failure(tmp_path, requests: int) -> None:
    found = fuzz(tmp_path, requests, seed=0, callers=8)
    assert found.total() == requests
    assert not [said for said in found if said.startswith("FAILURE")]
    assert found["200"] + found["202"] > 0  # some are no worse than before
    assert found["400"] > requests / 20
    assert audit(tmp_path / "ledger.sqlite").problems == []
