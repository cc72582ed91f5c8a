"""A teacher on a device: answers, receipts and ledger as on the processor, also over shards."""

from pathlib import Path

import numpy as np
import pytest
import torch

from labelwall.teacher.search import devices as search_devices
from labelwall.teacher.search.devices import DeviceIndex
from labelwall.teacher.shards import worker as worker_module
from labelwall.teacher.shards.config import ScaleConfig
from labelwall.wall.errors import InvalidInput
from tests.teacher.search.indexes import DEVICES
from tests.teacher.shards import tiny


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mechanism", tiny.MECHANISMS)
def test_answers_are_the_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mechanism: str, device: str
) -> None:
    """Raw vectors, whose features no device computes: only the search differs."""
    records = tiny.records(attributes=mechanism.endswith("attributes"))
    devices = []

    def on_device(
        where: torch.device, features: np.ndarray, ids: np.ndarray, persons: None
    ) -> DeviceIndex:
        devices.append(where.type)
        return DeviceIndex(features, ids, persons, device=where)

    results = []
    for place, shards in (("plain", 0), ("whole", 0), ("sharded", 2)):
        if place == "whole":  # from here on the device index, also on the processor
            monkeypatch.setattr(search_devices, "index_on", on_device)
            monkeypatch.setattr(worker_module, "index_on", on_device)
        on = "cpu" if place == "plain" else device
        teacher = tiny.ready(tmp_path / place, mechanism, records, shards, device=on)
        results.append(tiny.asked(teacher, mechanism))
    assert results[1:] == results[:1] * 2
    assert devices == [device] * 3


def test_an_absent_device_is_refused_before_anything_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: None)
    for shards in (0, 2):
        scale = ScaleConfig(shards=shards)
        with pytest.raises(InvalidInput, match="`device` must be cpu on this machine"):
            tiny.teacher(tmp_path, "private_knn", tiny.records(), scale, device="cuda")
    ledger = tiny.ledger_in(tmp_path, tiny.MECHANISMS["private_knn"], 1000)
    assert (ledger.state.seq, ledger.state.spent) == (0, {})
