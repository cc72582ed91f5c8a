"""Feature maps: the one that docs/extend adds, from its settings to a released model."""

from pathlib import Path

import numpy as np
import pytest
import torch

import labelwall as lw
from labelwall.student import public_settings
from labelwall.wall import feature_maps as maps
from labelwall.wall import networks
from labelwall.wall.errors import InvalidInput
from labelwall.wall.features.embedder import Embedder
from labelwall.wall.messages import ExtractorSpec
from tests.pages import example


@pytest.fixture
def added(monkeypatch) -> maps.FeatureMap:
    """The page's map, which is registered."""
    known: dict = {}
    exec(example("extractor", most=40), vars(maps), known)
    (made,) = (each for each in known.values() if isinstance(each, type))
    monkeypatch.setitem(maps.MAPS, made.name, made())
    build = networks.partial(networks._mapped, maps.MAPS[made.name])
    monkeypatch.setitem(networks.OF_VECTORS, made.name, build)
    names = (*public_settings.FEATURES, made.name)
    monkeypatch.setattr(public_settings, "FEATURES", names)
    return maps.MAPS[made.name]


def rings(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A ring around a disc: float32 [n, 3], and which of both."""
    rng = np.random.default_rng(seed)
    y, angle = rng.integers(0, 2, n), rng.uniform(0, 2 * np.pi, n)
    x = np.stack([np.cos(angle), np.sin(angle)], 1) * (0.4 + 1.2 * y)[:, None]
    return np.column_stack([x + rng.normal(0, 0.2, x.shape), rng.normal(size=n)]), y


def test_the_map_of_the_page_is_asked_with_rehearsed_and_released(
    added, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (x, y), (public, _), (test, truth) = (rings(n, n) for n in (1500, 300, 200))
    x, public, test = (rows.astype(np.float32) for rows in (x, public, test))
    data, right = lw.Data((x, y), public, (test, truth)), {}
    for features in ("raw", added.name):
        model = lw.fit(
            data,
            8.0,
            run_dir=features,
            custody=f"{features}.custodian",
            features=features,
            mechanism={"kind": "private_linear", "steps": 10, "axes": 40},
            student={"steps": 100, "doubtful_folds": 0},
            threads=1,
            quiet=True,
        )
        right[features] = model.summary.rounds[0].label_accuracy or model.score(test, truth)
    assert right[added.name] > 0.9 > right["raw"]


def test_a_service_takes_the_map_and_a_row_stands_alone(added) -> None:
    spec = ExtractorSpec(added.name, (3,), 2)
    assert spec.network == added.name in networks.NETWORKS
    rows = rings(9, 0)[0].astype(np.float32)
    network = networks.build(added.name, input_shape=(3,), num_classes=2)
    tensors = added.tensors(3, rows)
    state = {name: value.shape for name, value in network.trunk.state_dict().items()}
    assert state == {name: value.shape for name, value in tensors.items()}
    spec = ExtractorSpec(added.name, (3,), 2, networks.to_safetensors(network), scale=100.0)
    together = Embedder(spec).embed(rows)[0]
    assert np.array_equal(Embedder(spec).embed(rows[4:5])[0], together[4:5])


def test_every_map_fills_its_network_and_says_what_it_needs() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    for name, known in maps.MAPS.items():
        network = networks.build(name, input_shape=(4,), num_classes=3)
        tensors = known.tensors(4, rows if known.of_rows else rows[:0])
        state = network.trunk.state_dict()
        assert {n: tuple(v.shape) for n, v in state.items()} == {
            n: v.shape for n, v in tensors.items()
        }
        assert known.trunk(4)[1] == network.head.in_features


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="one of auto, hog, raw, fourier, bins,"):
        public_settings.FirstFeatures(features="bent")


def test_no_value_lies_on_an_edge_of_bins_which_cut_public_rows_at_quantiles() -> None:
    """Rounding of another scaling changes no bin."""
    rng = np.random.default_rng(0)
    rows = np.c_[rng.integers(0, 900, 500), rng.normal(size=500)].astype(np.float32)
    tensors = maps.MAPS["bins"].tensors(2, rows)
    layer, _ = maps.MAPS["bins"].trunk(2)
    layer.load_state_dict({name: torch.from_numpy(value) for name, value in tensors.items()})
    assert not np.isin(tensors["lower"][tensors["height"] > 0], rows).any()
    parts = min(maps.QUANTILES, max(maps.MOST_BINS))
    for column, entries in enumerate(rows.T):
        cuts = np.unique(np.quantile(entries, np.arange(1, parts) / parts))
        own = (tensors["weight"][:, column] == 1) & (tensors["height"] > 0)
        scaled = rows * np.float32(1 + 2e-7)
        for each in (rows, scaled):
            inside = layer(torch.from_numpy(each)).detach().numpy()[:, 2:][:, own] > 0
            assert (inside.sum(axis=1) == 1).all()
            np.testing.assert_array_equal(
                inside.argmax(axis=1), cuts.searchsorted(entries, "right")
            )
