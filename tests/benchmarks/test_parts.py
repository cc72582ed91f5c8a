"""What the benchmarks compute: features, rehearsals, the model of scale, tables of packages."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelwall.teacher.records.sources import open_records
from labelwall.wall.datasets.config import DataConfig
from labelwall.wall.datasets.sources import describe, read_public


def test_cached_features_become_arrays_whose_centre_is_of_public_rows(load, tmp_path: Path) -> None:
    (image_features,) = load("image_features")
    private = np.random.default_rng(1).normal(size=(6, 4)) - 40
    test = np.random.default_rng(0).normal(size=(6, 4)) + 5
    for n, part in enumerate((slice(0, 3), slice(3, 6))):
        np.savez(tmp_path / f"test_00{n}.npz", features=test[part], labels=np.arange(6)[part] % 2)
        np.savez(tmp_path / f"train_00{n}.npz", features=private[part], labels=np.array([1, 1, 0]))
    image_features.to_arrays(tmp_path, tmp_path / "rows.npz")
    data = DataConfig("arrays", path=str(tmp_path / "rows.npz"))
    public, records = read_public(data), open_records(data, describe(data))
    pairs = ((public.inputs, test[:3]), (public.test_inputs, test[3:]), (records.inputs, private))
    for stored, rows in pairs:
        moved = rows - test[:3].mean(axis=0)
        unit = moved / np.linalg.norm(moved, axis=1, keepdims=True)
        np.testing.assert_allclose(stored, 2 * unit, rtol=1e-5)
    assert public.labels is not None
    assert [*public.labels, *public.test_labels] == [0, 1, 0, 1, 0, 1]
    assert records.labels.tolist() == [1, 1, 0, 1, 1, 0]


def test_the_model_of_scale_finds_the_constants_that_made_the_times(load: Any) -> None:
    """Times of a machine with known constants; then what they add up to for shards, by hand."""
    (model,) = load("scale_model")
    pair, entry = 1.5e-6, 2e-5
    times = {rows: pair * rows + entry * model.LIST for rows in (10**4, 10**5, 10**6)}
    echoes = {width: 3.0 + 1e-5 * 256 * width for width in (100, 500, 2513)}
    fit = model.fitted(times, echoes, 256, 4e-5)
    constants = (fit.pair, fit.entry, fit.request, fit.returned)
    assert constants == pytest.approx((pair, entry, 3.0, 1e-5))
    assert model.asked_for(100) == 64  # 25.13 + 6 * 5.013 + 8 = 63.2, rounded up
    assert model.asked_for(1) == 2513
    parts = model.cost(fit, 10**9, 100, 256, threads=16, ray=True)
    workers = 100 * 3.0 / 256 + 6400 * 1e-5
    by_hand = {"search": (15 + 64 * entry) / 16, "workers": workers, "merge": 6400 * 4e-5}
    assert parts == pytest.approx(by_hand)
    alone = model.cost(fit, 10**6, 4, 256)["search"]
    assert alone == pytest.approx(1.5 + 4 * model.asked_for(4) * entry)
