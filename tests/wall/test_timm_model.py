"""Extractors of timm with published weights: from a file every tensor in its place, nothing left at
random, clear refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from torch import nn

from labelwall import pipeline
from labelwall.teacher.features.embedder import Embedder
from labelwall.wall.errors import InvalidInput, MissingData
from labelwall.wall.networks import timm_model
from tests.experiment import tiny

NAME = "test_efficientnet"  # timm's own test model: 160 x 160 pixels, 100,000 weights


@pytest.fixture
def published(tmp_path: Path) -> tuple[nn.Module, Path]:
    """A model with its classifier, and its file."""
    torch.manual_seed(3)
    model = timm.create_model(NAME, pretrained=False, num_classes=7).eval()
    safetensors.torch.save_file(model.state_dict(), tmp_path / "model.safetensors")
    return model, tmp_path / "model.safetensors"


@pytest.mark.parametrize("channels", [1, 3])
def test_features_are_the_models_own(published: tuple[nn.Module, Path], channels: int) -> None:
    model, path = published
    spec = timm_model(NAME, path, (20, 24, channels), 10)
    images = np.random.default_rng(0).integers(0, 256, (3, 20, 24, channels), dtype=np.uint8)
    embedder = Embedder(spec, probe=images, batch_size=4)
    features = embedder.features(images)
    mean, std = (np.array(model.pretrained_cfg[key]) for key in ("mean", "std"))
    if channels == 1:
        mean, std = mean.mean(), std.mean()
    x = torch.from_numpy(((images / 255 - mean) / std).transpose(0, 3, 1, 2)).float()
    x = nn.functional.interpolate(x, (160, 160), mode="bilinear", antialias=True).expand(
        -1, 3, -1, -1
    )
    with torch.inference_mode():
        expected = model.forward_head(model.forward_features(x), pre_logits=True).numpy()
    np.testing.assert_allclose(features, expected, rtol=1e-3, atol=1e-4)
    integers, finite = embedder.embed(images)
    assert finite.all()
    assert np.sqrt((integers.astype(float) ** 2).mean()) == pytest.approx(16, rel=0.1)


def test_another_models_file_is_refused(published: tuple[nn.Module, Path], tmp_path: Path) -> None:
    """Also one that lacks a single tensor, which would else stay as it was drawn."""
    model, path = published
    state = model.state_dict()
    missing = {key: value for key, value in state.items() if key != "bn2.running_mean"}
    narrow = state | {"conv_stem.weight": state["conv_stem.weight"][:, :1].contiguous()}
    for number, tensors in enumerate((missing, narrow)):
        safetensors.torch.save_file(tensors, tmp_path / f"{number}.safetensors")
        with pytest.raises(InvalidInput, match="weights"):
            timm_model(NAME, tmp_path / f"{number}.safetensors", (20, 20, 3), 10)
    torch.save(state, tmp_path / "pickled.safetensors")
    with pytest.raises(InvalidInput, match="weights"):
        timm_model(NAME, tmp_path / "pickled.safetensors", (20, 20, 3), 10)
    with pytest.raises(MissingData, match="weights"):
        timm_model(NAME, tmp_path / "none.safetensors", (20, 20, 3), 10)
    for name, shape in (("no_such_model", (20, 20, 3)), (NAME, (12,))):
        with pytest.raises(InvalidInput, match="backbone"):
            timm_model(name, path, shape, 10)


def test_downloaded_weights_are_loaded_and_a_failed_download_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(4)
    model, create = timm.create_model(NAME, pretrained=False, num_classes=0), timm.create_model

    def published(name: str, *, pretrained: bool, **options: int) -> nn.Module:
        return model if pretrained else create(name, pretrained=False, **options)

    monkeypatch.setattr(timm, "create_model", published)
    found = safetensors.torch.load(timm_model(NAME, None, (20, 20, 3), 10).weights)
    assert all(
        torch.equal(found[f"trunk.network.{key}"], value)
        for key, value in model.state_dict().items()
    )

    def offline(name: str, *, pretrained: bool, **options: int) -> nn.Module:
        if pretrained:
            raise ConnectionError("no route")
        return create(name, pretrained=False, **options)

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(MissingData, match="could not be downloaded"):
        timm_model(NAME, None, (20, 20, 3), 10)


@pytest.mark.parametrize(
    "options", [["--features", "resnet"], ["--weights", "x"], ["--features", f"timm/{NAME}"]]
)
def test_settings_that_mean_nothing_exit_with_two(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The last: vectors are no images."""
    tiny.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert (
        pipeline.main(["run", "--config", "config.yaml", "--run_dir", "out", "--quiet", *options])
        == 2
    )
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("*.custodian/ledger.sqlite"))
