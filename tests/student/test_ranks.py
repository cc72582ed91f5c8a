"""A training by several processes is the training by one: the same steps, and the same weights up
to rounding."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from timm.layers import BatchNormAct2d
from torch import nn

from labelwall.student import launch
from labelwall.student.augment import Augmenter
from labelwall.student.config import StudentConfig
from labelwall.student.data import STEPS_A_CHAPTER, Pool
from labelwall.student.fit import TrainedStudent, fit
from labelwall.student.job import Job, read_job, write_job
from labelwall.student.norms import SharedNorm, require_shareable, share_norms
from labelwall.student.ranks import Ranks
from labelwall.student.train import outputs, train
from labelwall.wall.errors import InvalidInput, LabelwallError
from labelwall.wall.labels.classes import ClassLabels
from labelwall.wall.networks.architectures import build
from tests.programs import REPOSITORY
from tests.student import shared_cases as cases

# Gradients of one step in float64 differ by the order of sums alone: some hundred additions of
# 1e-16 of their size each, times what a batch norm's or a finite difference's cancellation costs
# (xi = 0.1: a thousand).
STEP_TOLERANCE = 1e-9
# Ten float32 steps of at most 3e-3 each way. A gradient's rounding, 1e-7 of it, passes Adam's
# division unchanged unless the gradient is rounding alone; VAT's direction is a normalised finite
# difference, whose rounding is about 1e-4 of it.
WEIGHT_TOLERANCE = {"uda": 2e-5, "supervised": 2e-5, "vat": 2e-3}
WHOLE = StudentConfig(
    backbone="mlp", steps=STEPS_A_CHAPTER + 10, batch_labelled=17, batch_unlabelled=25, devices=2
)


def _train(run_dir: Path) -> TrainedStudent:
    return train(
        WHOLE,
        cases.POOLS["classes"][0],
        cases.LABELS,
        run_dir=run_dir,
        seed=4,
        test_x=cases.VECTORS,
        test_y=cases.TRUTH,
    )


@pytest.fixture(scope="module")
def found(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[TrainedStudent, list[dict[str, torch.Tensor]]]:
    """What two processes found in all cases, by rank, and the training they were started for.

    Started once: it takes seconds.
    """
    folder = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "WORKER", "tests.student.shared_cases")
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        whole = _train(folder)
    return whole, [
        safetensors.torch.load_file(folder / f"rank_{rank}.safetensors") for rank in range(2)
    ]


def _of(tensors: dict[str, torch.Tensor], case: str) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix(f"{case}/"): tensor
        for name, tensor in tensors.items()
        if name.startswith(f"{case}/")
    }


def _distance(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """The largest difference of an entry, relative to its tensor's largest if that is above 1."""
    assert set(ours) == set(theirs)
    return max(
        float((ours[n] - theirs[n]).abs().max() / ours[n].abs().max().clamp(min=1)) for n in ours
    )


@pytest.mark.parametrize("case", cases.jobs())
def test_a_step_has_the_gradients_and_statistics_of_one_process(case: str, found) -> None:
    alone = cases.step(cases.jobs()[case])
    assert (
        max(float(tensor.abs().max()) for name, tensor in alone.items() if "buffer" not in name)
        > 1e-3
    )
    for tensors in found[1]:
        assert _distance(alone, _of(tensors, case)) < STEP_TOLERANCE


def test_the_comparison_of_steps_can_fail(found) -> None:
    alone = cases.step(cases.jobs()["images uda"])
    assert _distance(alone, _of(found[1][0], "own norms")) > 1e-3


@pytest.mark.parametrize("case", cases.TRAINED)
def test_trained_weights_and_outputs_are_those_of_one_process(
    case: str, found, tmp_path: Path
) -> None:
    job = cases.jobs(steps=10)[case]
    alone = fit(job, tmp_path).weights
    first, second = (_of(tensors, f"trained {case}") for tensors in found[1])
    # The ranks agree to the last bit
    assert all(torch.equal(first[name], second[name]) for name in first)
    tolerance = WEIGHT_TOLERANCE[job.config.objective]
    assert _distance(safetensors.torch.load(alone), first) < tolerance
    rows = job.pool.inputs
    ours, theirs = (
        outputs(job.pool.spec(job.config.backbone, w), rows)
        for w in (alone, safetensors.torch.save(first))
    )
    np.testing.assert_allclose(theirs, ours, atol=20 * tolerance)


def test_metrics_are_of_all_test_rows(found, tmp_path: Path) -> None:
    pool, labels, test = cases.POOLS["classes"]
    alone = fit(Job(replace(WHOLE, devices=1), pool, labels, 4, test), tmp_path)
    assert [row["step"] for row in found[0].history] == [100, 110]
    for ours, theirs in zip(found[0].history, alone.history, strict=True):
        # A row of 120 next to a border may fall on its other side
        assert ours == pytest.approx(theirs, abs=0.01)
    assert ours["accuracy/test"] > 0.8


@pytest.mark.slow
def test_an_interrupted_training_ends_with_the_same_bytes(
    found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller goes away at step 105: its processes end by themselves, and the next ones go on
    from the checkpoint."""
    original = launch._wait
    seen: list[subprocess.Popen[bytes]] = []

    def leave(
        processes: list[subprocess.Popen[bytes]], scratch: Path, done: Callable[[int], None]
    ) -> None:
        until = time.monotonic() + 120
        while not (tmp_path / "stopped").exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()  # what the end of the caller does
        seen.extend(processes)
        original(processes, scratch, done)

    with monkeypatch.context() as patch:
        patch.setattr(launch, "_wait", leave)
        patch.setattr(launch, "WORKER", "tests.programs.interrupted_training")
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        with pytest.raises(LabelwallError, match="continues from the last checkpoint"):
            _train(tmp_path)
    assert all(process.returncode == 1 for process in seen) or -9 in {
        process.returncode for process in seen
    }
    assert (
        torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["global_step"]
        == STEPS_A_CHAPTER
    )
    resumed = _train(tmp_path)
    assert resumed.weights == found[0].weights
    assert resumed.history == found[0].history
    assert not (tmp_path / "checkpoints" / "ranks").exists()


def test_parts_are_the_batch_in_order() -> None:
    for rows in range(2, 30):
        for size in range(1, rows + 1):
            parts = [list(range(rows))[Ranks(rank, size).part(rows)] for rank in range(size)]
            assert [row for part in parts for row in part] == list(range(rows))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("strength", ["none", "shift", "natural"])
@pytest.mark.parametrize("shape", [(25, 3, 14, 14), (25, 6)])
def test_a_rows_distortion_does_not_depend_on_who_asks(
    shape: tuple[int, ...], strength: str, size: int
) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    augmenter = Augmenter(strength)

    def distorted(ranks: Ranks) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            return torch.cat(
                [f(x, ranks.part(len(x))) for f in (augmenter.weak, augmenter.strong)]
            ), torch.rand(1)

    whole, after = distorted(Ranks())
    parts = [distorted(Ranks(rank, size)) for rank in range(size)]
    assert all(torch.equal(state, after) for _, state in parts)
    halves = [[half[: len(half) // 2], half[len(half) // 2 :]] for half, _ in parts]
    assert torch.equal(
        torch.cat([*(weak for weak, _ in halves), *(strong for _, strong in halves)]), whole
    )


@pytest.fixture
def group() -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("momentum", [0.1, 0.0, None])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [(nn.BatchNorm1d, (9, 4)), (nn.BatchNorm2d, (9, 4, 3, 3)), (BatchNormAct2d, (9, 4, 3, 3))],
)
def test_a_shared_norm_of_one_process_is_the_norm(
    kind, shape: tuple[int, ...], momentum: float | None, group: None
) -> None:
    norm = kind(4, momentum=momentum)
    nn.init.uniform_(norm.weight)
    nn.init.uniform_(norm.bias)
    ours = share_norms(nn.Sequential(norm)).double()
    norm.double()
    assert isinstance(ours[0], SharedNorm)
    for _ in range(2):
        x = (3 + torch.randn(shape, dtype=torch.float64)).requires_grad_()
        weights = torch.randn(shape, dtype=torch.float64)
        gradients = [
            torch.autograd.grad((f(x) * weights).sum(), [x, *f.parameters()]) for f in (norm, ours)
        ]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    for one, other in zip(norm.state_dict().values(), ours.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(norm.eval()(x), ours.eval()(x))


def test_what_draws_or_is_unknown_is_not_shared() -> None:
    x = torch.rand(4, 6, generator=torch.Generator().manual_seed(0))
    require_shareable(build("mlp", input_shape=(6,), num_classes=3), x)
    with pytest.raises(InvalidInput, match="random layers"):
        require_shareable(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)), x)

    class Odd(nn.BatchNorm1d):
        pass

    with pytest.raises(InvalidInput, match="Odd"):
        require_shareable(nn.Sequential(Odd(6)), x)


def test_a_job_arrives_as_it_was_sent(tmp_path: Path) -> None:
    for job in (
        *cases.jobs().values(),
        Job(WHOLE, Pool(cases.VECTORS, ClassLabels.of(3)), cases.LABELS, 9, initial=b"weights"),
    ):
        (tmp_path / "job").write_bytes(write_job(job) + b"more")
        with (tmp_path / "job").open("rb") as stream:
            found = read_job(stream)
            assert stream.read() == b"more"
        assert (found.config, found.seed, found.initial) == (job.config, job.seed, job.initial)
        assert write_job(found) == write_job(job)
        assert (found.pool.labels, found.pool.mean, found.pool.std) == (
            job.pool.labels,
            job.pool.mean,
            job.pool.std,
        )
