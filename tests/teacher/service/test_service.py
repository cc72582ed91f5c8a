"""Over a real socket, several callers get the answers and receipts of the in-process teacher."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from labelwall.teacher.ledger.database import Place
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.batch import RadiusNeighbours
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.reverse_knn import ReverseKnn
from labelwall.teacher.mechanisms.values import PrivateKnnMedian
from labelwall.teacher.records import record_updates as updates
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import LedgerMismatch, Refused
from labelwall.wall.matrices import Cells
from labelwall.wall.messages import ABSTAINED, Answers, ExtractorSpec, Outcome, Queries, Receipt
from tests.postgres import audited
from tests.seeded_noise import SeededNoise
from tests.teacher.service import tiny
from tests.teacher.service.tiny import CLASSES, DIMENSIONS, SPEC, client, rows, served

LEDGER = "ledger.sqlite"


def in_process(folder: Path, mechanism: object = tiny.MECHANISM) -> Teacher:
    """The same teacher without a service, on the tape that the service of a test is on."""
    made = tiny.make(folder, entropy=SeededNoise(1), mechanism=mechanism)
    made.service.teacher.use_extractor(SPEC)
    return made.service.teacher


SEVERAL = {
    "by query": tiny.MECHANISM,
    "prepaid": IndKnn(threshold=0.1, sigma_label=0.3, sigma_count=2.0, rho=0.5),
    "by batch": RadiusNeighbours(radius=0.3, epsilon=1.0),
    "values": PrivateKnnMedian(
        k=9, sampling_probability=0.5, epsilon=1.0, cells=8, window=2, threshold=3, sigma_screen=5.0
    ),
}


@pytest.mark.parametrize("mechanism", SEVERAL.values(), ids=SEVERAL)
def test_labels_and_receipts_are_those_of_the_teacher_in_process(
    tmp_path: Path, mechanism: object
) -> None:
    """On a tape, up to the ledger's last entry, with a repeated row and a repeated request."""
    asked = np.concatenate([rows(40, 1), rows(3, 1)])
    local = in_process(tmp_path / "local", mechanism)
    made = tiny.make(tmp_path / "service", entropy=SeededNoise(1), mechanism=mechanism)
    calls = [Queries(inputs) for inputs in (asked, rows(10, 2), asked)]
    with served(made) as url, client(url, made.tokens["ann"]) as remote:
        there = [remote.answer(queries) for queries in calls]
        remote.export(tmp_path / "copy.sqlite")
    here = [local.answer(queries) for queries in calls]
    for mine, other in zip(here, there, strict=True):
        np.testing.assert_array_equal(mine.labels, other.labels)
        np.testing.assert_array_equal(mine.outcomes, other.outcomes)
    assert [_placed(answers) for answers in here] == [_placed(answers) for answers in there]
    assert (
        Ledger(tmp_path / "local" / LEDGER).state.results
        == Ledger(tmp_path / "copy.sqlite").state.results
    )
    if isinstance(mechanism, PrivateKnnMedian):
        assert len(set(here[0].labels.tolist())) > 2  # middles of cells, and -1
        return
    assert set(here[0].labels.tolist()) >= {0, 1, 2}
    if isinstance(mechanism, RadiusNeighbours):
        assert there[0].receipt.charged == {
            "batch": 1
        }  # 40 queries in one batch, though the teacher's are of 16


def _placed(answers: Answers) -> Receipt:
    """The receipt without the head, which depends on a data set's random name."""
    return replace(answers.receipt, ledger_head="")


def test_counts_are_those_of_the_teacher_in_process(tmp_path: Path) -> None:
    mechanism = ReverseKnn(cells=5, neighbours=2, sigma=2.0, margin=3.0)
    centers = np.random.default_rng(3).integers(-20, 20, (5, DIMENSIONS)).astype(np.int8)
    local = in_process(tmp_path / "local", mechanism).count(Cells(centers))
    made = tiny.make(tmp_path / "service", entropy=SeededNoise(1), mechanism=mechanism)
    with (
        served(made) as url,
        client(url, made.tokens["ann"]) as remote,
        client(url, made.tokens["bob"]) as other,
    ):
        found, again = remote.count(Cells(centers)), other.count(Cells(centers))
        with pytest.raises(Refused, match="of a mechanism that answers queries"):
            remote.answer(Queries(rows(1, 1)))
    assert local.counts is not None
    assert np.array_equal(local.counts, found.counts)
    assert np.array_equal(local.counts, again.counts)
    assert (found.receipt.charged, again.receipt.charged) == (
        local.receipt.charged,
        {"histogram": 0},
    )
    assert (found.receipt.served, again.receipt.served) == (0, 1)


def test_a_restarted_service_serves_what_it_answered(tmp_path: Path, place: Place) -> None:
    """Clients notice nothing: an extractor is sent again, queries are known."""
    made = tiny.make(tmp_path, place=place)
    with served(made) as url, client(url, made.tokens["ann"]) as remote:
        first = remote.answer(Queries(rows(20, 1)))
    again = tiny.make(tmp_path, place=place)
    with served(again) as url, client(url, again.tokens["ann"], spec=None) as remote:
        remote._spec = SPEC  # as a client that was there before
        second = remote.answer(Queries(rows(20, 1)))
    np.testing.assert_array_equal(first.labels, second.labels)
    assert second.receipt.served == 20
    assert second.receipt.charged == {"screen": 0, "aggregate": 0}


def test_concurrent_callers_share_batches_and_never_overspend(tmp_path: Path, place: Place) -> None:
    """Eight callers ask 8 x 60 queries, a third of them the same, against a cap of 200."""
    made = tiny.make(tmp_path, asked=200, answered=50, place=place)
    gathered: list[int] = []
    together = made.service.teacher.answer_together
    made.service.teacher.answer_together = lambda calls: (
        gathered.append(len(calls)) or together(calls)
    )
    barrier = threading.Barrier(8)

    def analyst(number: int, url: str) -> tuple[dict[bytes, int], int, int]:
        with client(url, made.tokens["ann" if number % 2 else "bob"]) as remote:
            own = [
                *rows(40, 10 + number).reshape(-1, 8, DIMENSIONS),
                *rows(20, 9).reshape(-1, 5, DIMENSIONS),
            ]
            barrier.wait()
            told, charged = {}, np.zeros(2, dtype=int)
            for batch in own:
                answers = remote.answer(Queries(batch))
                charged += [answers.receipt.charged["screen"], answers.receipt.charged["aggregate"]]
                told |= {
                    row.tobytes(): label
                    for row, label in zip(batch, answers.labels.tolist(), strict=True)
                }
        return told, int(charged[0]), int(charged[1])

    with served(made) as url, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: analyst(number, url), range(8)))
    told = [f[0] for f in found]
    shared = [tuple(t[row.tobytes()] for row in rows(20, 9)) for t in told]
    assert len(set(shared)) == 1  # one answer for each query, whoever asks
    spent = Ledger(place).state.spent
    assert spent[0, "screen"] == 200
    assert spent[0, "aggregate"] <= 50
    assert (sum(f[1] for f in found), sum(f[2] for f in found)) == (
        spent[0, "screen"],
        spent[0, "aggregate"],
    )
    assert audited(place, tmp_path).problems == []
    assert max(gathered) > 1


def test_past_the_plans_cap_queries_are_refused_one_by_one(tmp_path: Path) -> None:
    made = tiny.make(tmp_path, asked=20, answered=20)
    with served(made) as url, client(url, made.tokens["ann"]) as remote:
        answers = remote.answer(Queries(rows(30, 1)))
        assert remote.budget()["charged"] == 20  # what was refused is not held against the key
    assert (answers.outcomes[20:] == Outcome.CAP_REACHED).all()
    assert (answers.outcomes[:20] != Outcome.CAP_REACHED).all()
    assert (answers.labels[20:] == ABSTAINED).all()


def test_records_come_and_go(tmp_path: Path, place: Place) -> None:
    made = tiny.make(tmp_path, place=place)
    new, labels, ids = rows(4, 50), np.array([0, 1, 2, 0]), np.array([500, 501, 502, -3])

    def held() -> list[int]:
        return made.service.teacher.records().ids.tolist()

    with served(made) as url, client(url, made.tokens["carol"], spec=None) as carol:
        carol.add(new, labels, ids)
        carol.add(new, labels, ids)  # a repeated request changes nothing
        assert held() == [*range(80), *ids.tolist()]
        with pytest.raises(Refused, match="of no present record"):
            carol.add(new, labels[::-1].copy(), ids)
        carol.remove(np.array([500, 3, 12345]))
        carol.remove(np.array([500, 3, 12345]))
        assert set(held()) == ({*range(80), *ids.tolist()} - {500, 3})
        carol.add(new, labels, ids)  # once more after a removal is no repetition
        assert 500 in held()
        page = httpx.get(url, auth=("", made.tokens["carol"]), trust_env=False, timeout=60)
        assert page.status_code == 200  # on either ledger
    again = tiny.make(tmp_path, place=place)
    # 12345, too, will not be taken from the source
    assert again.service.ledger.in_custody(updates.counts) == (4, 2)
    assert set(again.service.teacher.records().ids.tolist()) == ({*range(80), *ids.tolist()} - {3})
    again.custodian.close()


def test_an_extractor_that_would_see_other_records_can_not_be_sent(
    shared: tuple[tiny.Made, str],
) -> None:
    """Modes, momenta and code have no field; weights that the network lacks are refused.

    tests/wall/networks/test_architectures.py shows what training mode would do: a row's features
    would depend on the other rows of its batch.
    """
    import safetensors.torch
    import torch

    from labelwall.wall.networks import architectures as backbones

    made, url = shared
    state = backbones.build("mlp", input_shape=(DIMENSIONS,), num_classes=CLASSES).state_dict()
    spec = ExtractorSpec("mlp", (DIMENSIONS,), CLASSES, safetensors.torch.save(state), scale=50.0)
    with client(url, made.tokens["ann"], spec=None) as remote:
        remote.use_extractor(spec)
        assert not made.service.teacher._embedder._network._backbone.training
        for extra in (
            {"training": torch.ones(1)},
            {"trunk.1.running_mean": torch.zeros(128)},
            {"trunk.1.track_running_stats": torch.zeros(1)},
        ):
            weights = safetensors.torch.save({**state, **extra})
            with pytest.raises(Refused, match="exactly the tensors"):
                remote.use_extractor(
                    ExtractorSpec("mlp", (DIMENSIONS,), CLASSES, weights, scale=50.0)
                )
        with pytest.raises(Refused, match=r"extractor\.backbone"):
            remote.use_extractor(ExtractorSpec("timm/resnet18", (DIMENSIONS,), CLASSES))
        with pytest.raises(Refused, match="num_classes"):
            remote.use_extractor(ExtractorSpec("mlp", (DIMENSIONS,), 1 << 19, b"", scale=50.0))
        remote.use_extractor(SPEC)


def test_a_service_returns_free_memory_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned = threading.Semaphore(0)
    monkeypatch.setattr("labelwall.teacher.service.app.UPKEEP_INTERVAL", 0.01)
    monkeypatch.setattr("labelwall.teacher.service.app.return_free_memory", returned.release)
    with served(tiny.make(tmp_path)):
        assert all(returned.acquire(timeout=60) for _ in range(3))


def test_a_service_over_an_anchored_ledger_needs_its_anchor(tmp_path: Path) -> None:
    """It is refused at its start, not at the first charge."""
    made = tiny.make(tmp_path / "custody", anchor=tmp_path / "anchor")
    with served(made) as url, client(url, made.tokens["ann"]) as remote:
        remote.answer(Queries(rows(3, 1)))
    with pytest.raises(LedgerMismatch, match="anchor"):
        tiny.make(tmp_path / "custody")
