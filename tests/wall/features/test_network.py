"""A network embeds a row alone, whatever stands beside it in the batch."""

import numpy as np
import pytest
import torch

from labelwall.wall import networks as backbones
from labelwall.wall.errors import InvalidInput
from labelwall.wall.features import network
from labelwall.wall.features.embedder import Embedder
from labelwall.wall.messages import ExtractorSpec
from tests.make import bars
from tests.teacher.search.indexes import DEVICES


class _Plain(torch.nn.Module):
    """Weighted maxima of an image, float32 [n, 12]: without sums, no kernel can mix rows."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(12, 28, 28, generator=generator)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.shapes: list[int] = []
        self.reproducible = True

    def features(self, x):
        if not torch.compiler.is_exporting():
            self.shapes.append(len(x))
            self.reproducible &= torch.are_deterministic_algorithms_enabled()
        product = x * self.weight  # [n, 1, 28, 28] * [12, 28, 28] -> [n, 12, 28, 28]
        return product.amax(dim=(2, 3))


class _SlotDependent(_Plain):
    """The last bit of a row's output depends on its slot, as with a kernel with a ragged tail."""

    def features(self, x):
        y = super().features(x)
        slots = torch.arange(len(y), device=y.device) % 3 == 2
        return torch.where(slots[:, None], torch.nextafter(y, torch.full_like(y, torch.inf)), y)


class _CompanyDependent(_Plain):
    """Batch statistics, which the test must find."""

    def features(self, x):
        return super().features(x - x.mean())


class _WithoutForm(_Plain):
    """Its way depends on the row: there is no graph of it."""

    def features(self, x):
        return super().features(x if x.sum() > 0 else -x)


SPEC = ExtractorSpec("under_test", (28, 28, 1), 10, mean=(0.1,), std=(0.3,), scale=100.0)


@pytest.fixture
def embedder_of(monkeypatch):
    """Embedders of modules. An accelerator is stood for by the processor, under its name."""

    def make(module, device="cpu", fresh=None, workers=2):
        monkeypatch.setattr(network, "load_network", lambda spec: module)
        monkeypatch.setattr(network, "build", lambda name, **_: fresh or module)
        if not torch.accelerator.is_available():
            monkeypatch.setattr(network, "device_of", lambda name: torch.device("cpu"))
        network.network_of.cache_clear()
        return Embedder(SPEC, workers=workers, device=device)

    yield make
    network.network_of.cache_clear()


@pytest.mark.parametrize(
    ("device", "fresh", "size"),
    [("cpu", _Plain, 1), ("cuda", _Plain, 64), ("cuda", _SlotDependent, 1)],
)
def test_a_network_sees_one_batch_shape(embedder_of, device, fresh, size):
    """That of an accelerator is larger if no slot matters, also with fresh weights."""
    module, images = _Plain(), bars(21)
    embedder = embedder_of(module, device, fresh())
    module.shapes.clear()
    integers, finite = embedder.embed(images)
    assert embedder.device == device
    assert integers.shape == (21, 12)
    assert finite.all()
    assert set(module.shapes) == (set() if device == "cpu" else {size})  # ONNX Runtime has its own
    assert module.reproducible
    assert not torch.are_deterministic_algorithms_enabled()
    x = (torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - 0.1) / 0.3
    reference = module.cpu().features(x).numpy()
    unit = reference / np.linalg.norm(reference, axis=1, keepdims=True)
    assert abs(integers - np.clip(100 * unit, -63, 63)).max() < 0.51


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("module", [_SlotDependent, _CompanyDependent, _WithoutForm])
def test_a_network_whose_slots_matter_runs_one_row_at_a_time(embedder_of, module, device):
    """As does one by torch on the processor, where ONNX knows no nextafter and no branches."""
    images, embedder = bars(10), embedder_of(module(), device)
    whole, _ = embedder.embed(images)
    shifted, _ = embedder.embed(np.concatenate([bars(1, seed=9), images]))
    np.testing.assert_array_equal(shifted[1:], whole)
    assert embedder._compute.threads == (device == "cpu" and module is _CompanyDependent)
    assert embedder._compute._size == 1


def test_in_batches_such_a_network_would_have_failed(embedder_of):
    """The test's fault is real: without the fallback an added record moves the others' bits."""
    images, batched = bars(10), embedder_of(_SlotDependent(), "cuda")._compute
    batched._size = network.BATCH
    shifted = batched(np.concatenate([images[-1:], images]))[1:]
    assert (shifted != batched(images)).any()


class _WithoutKernels(_Plain):
    def features(self, x):
        raise RuntimeError("no deterministic implementation")


def test_a_network_without_deterministic_kernels_is_refused_when_it_is_loaded(embedder_of):
    with pytest.raises(InvalidInput, match="deterministic kernels"):
        embedder_of(_WithoutKernels(), "cuda")
    hog = ExtractorSpec("hog", (28, 28, 1), 10)
    assert Embedder(hog, device="cuda").device == "cpu"


def test_threads_and_company_change_no_bit(embedder_of):
    """Of several threads, each computes rows alone; and a second session gives the same bits."""
    torch.manual_seed(0)
    name, shape = "timm/test_efficientnet", (28, 28, 1)
    module = backbones.build(name, input_shape=shape, num_classes=10).eval()
    images, order = bars(200), np.random.default_rng(1).permutation(200)
    alone = embedder_of(module, workers=1).features(images)
    with torch.inference_mode():
        x = (torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - 0.1) / 0.3
        np.testing.assert_allclose(alone, module.features(x), rtol=0, atol=1e-5)
    for workers in (2, 5):
        again = embedder_of(module, workers=workers).features(images[order])
        np.testing.assert_array_equal(again.view(np.uint32), alone[order].view(np.uint32))


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
    embedder = Embedder(spec, device=device)
    whole, finite = embedder.embed(images, lambda done, total: progress.append((done, total)))
    assert finite.all()
    assert progress[-1] == (19, 19)
    order = np.random.default_rng(1).permutation(19)
    np.testing.assert_array_equal(embedder.embed(images[order])[0], whole[order])
    shifted = embedder.embed(np.concatenate([images[-1:], images]))[0][1:]
    np.testing.assert_array_equal(shifted, whole)
