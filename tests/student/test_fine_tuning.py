"""A pretrained student: divided without a difference, resumed to the same bytes, and sent back."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from labelwall.student import student_model
from labelwall.student.batches import Lesson, Pool
from labelwall.student.fine_tuning import Layer, beside, divide, keep_views, start
from labelwall.student.linear.stored import StoredFit, stored_layer, to_bytes
from labelwall.student.module import Student
from labelwall.student.student_config import StudentConfig
from labelwall.student.student_model import outputs, penultimate_features
from labelwall.student.train import export, train
from labelwall.wall.errors import InvalidInput
from labelwall.wall.features.embedder import Embedder, unit_length
from labelwall.wall.label_kinds import AttributeLabels, ClassLabels, ValueLabels
from labelwall.wall.labels import LabelSpace
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.networks import (
    IMAGENET,
    load_network,
    timm_model,
    to_safetensors,
    without_head,
)
from labelwall.wall.preprocessing import Preprocessing, unit_scale
from labelwall.wall.progress import no_progress

MODEL, CLASSES, SHAPE = "test_efficientnet", ClassLabels.of(3), (16, 16, 3)
CONFIG = StudentConfig(
    backbone="pretrained",
    objective="fixmatch",
    augment="natural",
    steps=130,
    batch_labelled=8,
    batch_unlabelled=4,
    learning_rate=1e-2,
    image_side=32,
    trained_blocks=2,
    kept_views=4,
)
RNG = np.random.default_rng(0)
TRUTH = np.arange(60) % 3
COLOURS = np.array([[200, 90, 90], [90, 200, 90], [90, 90, 200]])
IMAGES = (COLOURS[TRUTH][:, None, None] + RNG.integers(-40, 40, (60, *SHAPE))).astype(np.uint8)


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> ExtractorSpec:
    """A timm model with random weights, whose batch norms have seen some images."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = without_head(f"pretrained/{MODEL}@32", SHAPE, 3).train()
        with torch.no_grad():
            for _ in range(20):
                network(Preprocessing((0.5,) * 3, (0.25,) * 3)(IMAGES))
    file = tmp_path_factory.mktemp("weights") / "model.safetensors"
    inner = network.trunk.get_submodule("network").state_dict()
    safetensors.torch.save_file({name: t.contiguous() for name, t in inner.items()}, file)
    return timm_model(MODEL, file, SHAPE, 3)


def fine_tuned(
    features: ExtractorSpec,
    folder: Path,
    labels: np.ndarray = TRUTH,
    space: LabelSpace = CLASSES,
    config: StudentConfig = CONFIG,
    soft: np.ndarray | None = None,
) -> ExtractorSpec:
    network = divide(start(features, config, space), config.trained_blocks)
    views = keep_views(folder / "views.npy", network.front, IMAGES, config, 3, no_progress)
    begin = network.rest, network.depths
    lesson = Lesson(pool=Pool(views, space), labels=labels, chances=soft)
    weights = train(config, lesson, run_dir=folder, seed=3, begin=begin)
    spec = network.trained(weights)
    return export(spec, penultimate_features(spec, IMAGES))


def test_the_student_has_both_networks_features_and_the_mean_of_their_logits(features) -> None:
    rng = np.random.default_rng(1)
    tuned = start(features, CONFIG, CLASSES)
    network = divide(tuned, 2)
    width = network.rest.head.in_features
    for part in network.rest.parameters():  # as if it had learned
        part.data.add_(0.01 * torch.randn(part.shape, generator=torch.Generator().manual_seed(1)))
    tuned = network.trained(to_safetensors(network.rest))
    layer = Layer(rng.normal(size=(width, 3)), rng.normal(size=3))
    plain = partial(penultimate_features, rows=IMAGES)
    both = beside(features, tuned, layer, plain)
    first, second = plain(features), plain(tuned)
    np.testing.assert_allclose(plain(both)[:, :width].var(axis=0).sum(), 1, rtol=1e-4)
    np.testing.assert_allclose(plain(both)[:, width:].var(axis=0).sum(), 1, rtol=1e-4)
    for kind, own in ((plain(both)[:, :width], first), (plain(both)[:, width:], second)):
        np.testing.assert_allclose(kind * (own[0, 0] / kind[0, 0]), own, rtol=1e-3, atol=1e-4)
    expected = (first @ layer.weights + layer.constant + outputs(tuned, IMAGES)) / 2
    np.testing.assert_allclose(outputs(both, IMAGES), expected, rtol=1e-3, atol=1e-3)
    alone = beside(features, tuned, None, plain)
    np.testing.assert_allclose(outputs(alone, IMAGES), outputs(tuned, IMAGES), atol=1e-4)
    rows, finite = Embedder(both).embed(IMAGES[:4])
    np.testing.assert_array_equal(Embedder(both).embed(IMAGES[2:3])[0], rows[2:3])
    mirrored = both.with_mirror()
    said = [outputs(both, seen) for seen in (IMAGES, IMAGES[:, :, ::-1].copy())]
    assert not np.allclose(*said, atol=1e-3)
    np.testing.assert_allclose(outputs(mirrored, IMAGES), np.mean(said, axis=0), atol=1e-4)
    assert mirrored.without_mirror() == both == both.without_mirror()
    assert both.network == mirrored.network == f"pretrained/{MODEL}"
    assert finite.all()


def test_many_images_are_computed_one_by_one_without_a_difference(features, monkeypatch) -> None:
    network, reported = start(features, CONFIG, CLASSES), []
    tensors = safetensors.torch.load(network.weights)
    tensors["head.weight"] = torch.randn_like(tensors["head.weight"])
    spec = replace(network, weights=safetensors.torch.save(tensors))
    scale = Preprocessing(spec.mean, spec.std)
    with torch.inference_mode():
        expected = load_network(spec)(scale(IMAGES)).numpy()
    np.testing.assert_allclose(outputs(spec, IMAGES), expected, rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(student_model, "SESSION_ROWS", len(IMAGES))
    monkeypatch.setattr(student_model, "SESSION_PART", 25)
    monkeypatch.setattr(student_model, "LARGE_BATCH", None)  # torch is not asked
    said = outputs(spec, IMAGES, lambda *seen: reported.append(seen))
    np.testing.assert_allclose(said, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(outputs(spec, IMAGES[::-1])[::-1], said)
    assert reported == [(25, 60), (50, 60), (60, 60)]


@pytest.mark.parametrize(("blocks", "kept"), [(0, SHAPE[:2]), (2, None), (99, (16, 16))])
def test_a_divided_network_gives_the_whole_ones_outputs(features, blocks: int, kept) -> None:
    spec = start(features, CONFIG, CLASSES)
    network = divide(spec, blocks)
    with torch.inference_mode():
        seen = network.front(unit_scale(IMAGES[:5]))
        expected = load_network(spec).features(Preprocessing(spec.mean, spec.std)(IMAGES[:5]))
        torch.testing.assert_close(network.rest.features(seen), expected)
    assert kept is None or tuple(seen.shape[2:]) == kept
    assert set(network.depths) == {name for name, _ in network.rest.named_parameters()}
    same = network.trained(to_safetensors(network.rest))
    assert safetensors.torch.load(same.weights).keys() == load_network(spec).state_dict().keys()
    np.testing.assert_array_equal(outputs(same, IMAGES), outputs(spec, IMAGES))


@pytest.mark.parametrize("name", IMAGENET)
def test_the_packaged_network_is_divided_alike(name: str) -> None:
    from labelwall.wall.networks import efficientnet_lite

    features = efficientnet_lite(name, SHAPE, 3)
    spec = start(features, CONFIG, CLASSES)
    network = divide(spec, 4)
    assert spec.backbone == f"{name}@32"
    with torch.inference_mode():
        seen = network.rest.features(network.front(unit_scale(IMAGES[:3])))
        expected = load_network(spec).features(Preprocessing(spec.mean, spec.std)(IMAGES[:3]))
    torch.testing.assert_close(seen, expected)


def test_the_head_begins_at_the_released_classifier(features, tmp_path: Path) -> None:
    whole = replace(features, backbone=f"pretrained/{MODEL}@32")
    plain, rng = Embedder(whole).features(IMAGES), np.random.default_rng(1)
    axes = rng.integers(-9000, 9000, (plain.shape[1], 5)).astype("<i2")
    center = tuple(plain.mean(axis=0).tolist())
    asked = replace(whole, center=center, scale=200.0, axes=axes.tobytes())
    weights = rng.normal(size=(6, 3))
    fit, length = StoredFit(weights=weights, precision=1.0), unit_length(asked, 5)
    file = tmp_path / "linear.safetensors"
    file.write_bytes(to_bytes(fit, asked.sha256(), length, "class"))
    network = divide(start(asked, CONFIG, CLASSES), 2)
    stored = stored_layer(file)
    assert stored is not None
    Layer.released(stored, asked, plain).begin(network.rest.head)
    said = outputs(network.trained(to_safetensors(network.rest)), IMAGES)
    z = (plain - np.array(center)) @ axes.astype(float)
    z *= length / np.linalg.norm(z, axis=1).mean()
    expected = z @ weights[:-1] + float(safetensors_bias(file)) * weights[-1]
    np.testing.assert_allclose(said, expected, rtol=1e-3, atol=1e-2 * np.abs(expected).max())


def safetensors_bias(file: Path) -> str:
    with safetensors.safe_open(file, "numpy") as stored:
        return str(stored.metadata()["bias"])


@pytest.mark.parametrize("objective", ["fixmatch", "uda", "vat", "supervised"])
def test_it_learns_and_its_features_are_an_extractor(features, objective, tmp_path: Path) -> None:
    # At CONFIG's rate VAT loses a class by two seeds of three.
    config = replace(CONFIG, objective=objective, learning_rate=3e-3)
    config = replace(config, vat_epsilon=0.3, entropy_weight=0.0)
    spec = fine_tuned(features, tmp_path, config=config)
    assert (outputs(spec, IMAGES).argmax(axis=1) == TRUTH).mean() > 0.9
    together, finite = Embedder(spec).embed(IMAGES)
    assert finite.all()
    alone = np.concatenate([Embedder(spec).embed(IMAGES[[row]])[0] for row in (3, 7)])
    np.testing.assert_array_equal(together[[3, 7]], alone)  # one row at a time, to the last bit


def test_the_frozen_part_and_all_statistics_stay(features, tmp_path: Path) -> None:
    before = safetensors.torch.load(start(features, CONFIG, CLASSES).weights)
    after = safetensors.torch.load(fine_tuned(features, tmp_path).weights)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert not any("running" in name or "conv_stem" in name for name in changed)


def test_a_killed_training_ends_with_the_same_bytes(features, tmp_path, monkeypatch) -> None:
    soft = np.eye(3, dtype=np.float32)[TRUTH] * 0.7 + 0.1
    run = partial(fine_tuned, features, soft=soft)
    whole, original = run(tmp_path / "whole"), Student.training_step

    def killed(self: Student, batch: object, index: int) -> torch.Tensor:
        if self.global_step == 120:
            raise InterruptedError
        return original(self, batch, index)

    monkeypatch.setattr(Student, "training_step", killed)
    with pytest.raises(InterruptedError):
        run(tmp_path / "killed")
    monkeypatch.setattr(Student, "training_step", original)
    torch.manual_seed(99)
    assert run(tmp_path / "killed").sha256() == whole.sha256()


def test_views_that_were_being_computed_are_computed_again(features, tmp_path: Path) -> None:
    front = divide(start(features, CONFIG, CLASSES), 2).front
    keep = partial(keep_views, front=front, images=IMAGES, config=CONFIG, seed=3)
    whole = np.array(keep(tmp_path / "whole.npy", progress=no_progress))

    def killed(*_: object) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        keep(tmp_path / "views.npy", progress=killed)
    torch.manual_seed(99)
    np.testing.assert_array_equal(keep(tmp_path / "views.npy", progress=no_progress), whole)
    assert whole.shape[:2] == (60, 4)


@pytest.mark.parametrize("kind", ["attributes", "values"])
def test_it_learns_other_kinds_of_labels(features, kind: str, tmp_path: Path) -> None:
    red = TRUTH == 0
    if kind == "attributes":
        labels = np.stack([red, TRUTH == 1], axis=1).astype(np.int64)
        labels[::5, 1] = -1
        spec = fine_tuned(features, tmp_path, labels, AttributeLabels.of(2))
        assert ((outputs(spec, IMAGES)[:, 0] > 0) == red).mean() > 0.9
    else:
        space = ValueLabels(0.0, 1.0)
        spec = fine_tuned(features, tmp_path, space.steps(red.astype(float)), space)
        assert ((outputs(spec, IMAGES)[:, 0] > 0) == red).mean() > 0.9


@pytest.mark.parametrize(
    ("found", "changed", "message"),
    [
        ("hog", {}, r"student\.backbone"),
        ("vectors", {}, r"student\.backbone"),
        ("network", {"image_side": 31}, r"student\.image_side.* from 32 to 512"),
        ("network", {"devices": 2}, r"student\.devices"),
        ("vit", {"image_side": 48}, r"student\.image_side.* a side that "),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(features, found, changed, message) -> None:
    specs = {
        "hog": ExtractorSpec("hog", SHAPE, 3),
        "vectors": ExtractorSpec("raw", (4,), 3),
        "network": features,
    }
    if found == "vit":
        name = "pretrained/vit_tiny_patch16_224"
        zeros = to_safetensors(without_head(name, SHAPE, 3))
        specs["vit"] = ExtractorSpec(name, SHAPE, 3, zeros, (0.5,) * 3, (0.5,) * 3)
    with pytest.raises(InvalidInput, match=message) as error:
        start(specs[found], replace(CONFIG, **changed), CLASSES)
    assert "\n" not in str(error.value)
