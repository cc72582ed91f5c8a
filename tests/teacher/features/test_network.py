"""A network embeds a row alone, whatever stands beside it in the batch."""

import numpy as np
import pytest
import torch

from labelwall.teacher.features import network
from labelwall.teacher.features.embedder import Embedder
from labelwall.wall import networks as backbones
from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import ExtractorSpec
from tests.teacher.features.images import HOG, bars
from tests.teacher.search.indexes import DEVICES


class _Plain(torch.nn.Module):
    """Weighted maxima of an image, float32 [n, 12]: without sums, no kernel can mix rows."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(12, 28, 28, generator=generator)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.shapes: list[int] = []
        self.reproducible = True

    def features(self, x: torch.Tensor) -> torch.Tensor:
        self.shapes.append(len(x))
        self.reproducible &= torch.are_deterministic_algorithms_enabled()
        product = x * self.weight  # [n, 1, 28, 28] * [12, 28, 28] -> [n, 12, 28, 28]
        return product.amax(dim=(2, 3))


class _SlotDependent(_Plain):
    """The last bit of a row's output depends on its slot, as with a kernel with a ragged tail."""

    def features(self, x: torch.Tensor) -> torch.Tensor:
        y = super().features(x)
        slots = torch.arange(len(y), device=y.device) % 3 == 2
        return torch.where(slots[:, None], torch.nextafter(y, torch.full_like(y, torch.inf)), y)


class _CompanyDependent(_Plain):
    """Batch statistics, which the probe must find."""

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return super().features(x - x.mean())


def _network_embedder(monkeypatch, module, probe, batch_size=8, device="cpu"):
    monkeypatch.setattr(network, "load", lambda spec: module)
    spec = ExtractorSpec("under_test", (28, 28, 1), 10, mean=(0.1,), std=(0.3,), scale=100.0)
    return Embedder(spec, probe=probe, batch_size=batch_size, device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_a_network_sees_one_batch_shape(monkeypatch, device):
    module, images = _Plain(), bars(21)
    embedder = _network_embedder(monkeypatch, module, images[:5], device=device)
    assert (embedder.batch_size, embedder.device) == (8, device)
    integers, finite = embedder.embed(images)
    assert integers.shape == (21, 12)
    assert finite.all()
    assert set(module.shapes) == {8}
    assert module.reproducible
    assert not torch.are_deterministic_algorithms_enabled()
    x = (torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - 0.1) / 0.3
    reference = module.cpu().features(x).numpy()
    unit = reference / np.linalg.norm(reference, axis=1, keepdims=True)
    assert abs(integers - 100 * unit).max() < 0.51 or (integers == 63).any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("module", [_SlotDependent, _CompanyDependent])
def test_a_network_whose_slots_matter_runs_one_row_at_a_time(monkeypatch, module, device):
    images = bars(10)
    embedder = _network_embedder(monkeypatch, module(), images, device=device)
    assert embedder.batch_size == 1
    whole, _ = embedder.embed(images)
    shifted, _ = embedder.embed(np.concatenate([bars(1, seed=9), images]))
    np.testing.assert_array_equal(shifted[1:], whole)


def test_in_batches_such_a_network_would_have_failed(monkeypatch):
    """The probe's fault is real: without the fallback an added record moves the others' bits."""
    monkeypatch.setattr(network, "load", lambda spec: _SlotDependent())
    spec = ExtractorSpec("under_test", (28, 28, 1), 10, mean=(0.1,), std=(0.3,))
    images, batched = bars(10), network.FixedShapeNetwork(spec, 8)
    shifted = batched.features(np.concatenate([images[-1:], images]))[1:]
    assert (shifted != batched.features(images)).any()
    assert not batched.slot_independent(images[:1])  # one public row is enough


class _WithoutKernels(_Plain):
    def features(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no deterministic implementation")


def test_a_network_without_deterministic_kernels_is_refused_when_it_is_loaded(monkeypatch):
    monkeypatch.setattr(network, "load", lambda spec: _WithoutKernels())
    # Stands for an accelerator, which this machine may not have.
    monkeypatch.setattr(network, "device_of", lambda name: torch.device("cpu"))
    spec = ExtractorSpec("under_test", (28, 28, 1), 10, mean=(0.1,), std=(0.3,))
    with pytest.raises(InvalidInput, match="deterministic kernels"):
        Embedder(spec, probe=None, device="cuda")


def test_a_network_without_a_probe_runs_one_row_at_a_time_and_hog_on_the_processor(monkeypatch):
    assert _network_embedder(monkeypatch, _Plain(), None).batch_size == 1
    assert _network_embedder(monkeypatch, _Plain(), bars(0)).batch_size == 1
    assert Embedder(HOG, probe=None, device="cuda").device == "cpu"


@pytest.mark.parametrize("device", DEVICES)
def test_a_real_backbone_reports_progress_and_ignores_company(device):
    torch.manual_seed(0)
    name = next(name for name in backbones.NETWORKS if name != "mlp")
    module = backbones.build(name, input_shape=(28, 28, 1), num_classes=10)
    weights = backbones.to_safetensors(module)
    spec = ExtractorSpec(
        name, (28, 28, 1), 10, weights=weights, mean=(0.1,), std=(0.3,), scale=100.0
    )
    images, progress = bars(19), []
    embedder = Embedder(spec, probe=images[:4], batch_size=8, device=device)
    whole, finite = embedder.embed(images, lambda done, total: progress.append((done, total)))
    assert finite.all()
    assert progress[-1] == (19, 19)
    order = np.random.default_rng(1).permutation(19)
    np.testing.assert_array_equal(embedder.embed(images[order])[0], whole[order])
    shifted = embedder.embed(np.concatenate([images[-1:], images]))[0][1:]
    np.testing.assert_array_equal(shifted, whole)
