"""Requests from the OpenAPI document: no 500, no undocumented reply, no changed ledger."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest
import schemathesis
from hypothesis import strategies as st

from labelwall.teacher.ledger.ledger import Ledger
from labelwall.wall.wire import NPY, SAFETENSORS, encode, encode_extractor
from tests.teacher.service import tiny
from tests.teacher.service.tiny import SPEC, rows, served
from tests.wall.test_wire import BAD

BODIES = [body for body, _ in BAD.values()] + [
    encode({"inputs": rows(2, 1)}),
    encode_extractor(SPEC),
]
for media in (SAFETENSORS, NPY):
    schemathesis.openapi.media_type(media, st.binary(max_size=200) | st.sampled_from(BODIES))


@pytest.mark.parametrize("role", ["ann", "carol"])
def test_generated_requests(tmp_path: Path, role: str) -> None:
    """Valid and invalid requests of every operation get documented replies; the ledger stays.

    The cases are the same in every run.
    """
    made, seen = tiny.make(tmp_path), set()
    headers = {"Authorization": f"Bearer {made.tokens[role]}"}
    before = Ledger(tmp_path / "ledger.sqlite").state.head
    operations = list(schemathesis.openapi.from_dict(made.app.openapi()).get_all_operations())
    with served(made) as url:
        for found in operations:
            seen |= tried(found.ok(), url, headers)
    assert Ledger(tmp_path / "ledger.sqlite").state.head == before
    assert len({label for label, _ in seen}) == 13  # every operation
    assert {status for _, status in seen} >= {200, 404, 422}


def tried(
    operation: schemathesis.schemas.APIOperation, url: str, headers: dict[str, str]
) -> set[tuple[str, int]]:
    """(operation, status) of the replies to generated requests of one operation."""
    documented, seen = set(operation.definition.raw["responses"]), set()

    health = list(hypothesis.HealthCheck)

    @hypothesis.settings(
        max_examples=15,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=health,
    )
    @hypothesis.given(case=operation.as_strategy())
    def send(case: schemathesis.Case) -> None:
        reply = case.call(base_url=url, headers=headers)
        assert reply.status_code != 500
        assert str(reply.status_code) in documented
        seen.add((operation.label, reply.status_code))

    send()
    return seen
