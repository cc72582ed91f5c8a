"""PATE's teachers as the papers have them: a small convolutional network for each shard of the private images.

A classifier is a function of its own shard, its number and the custodian's key: initial weights and the rows of each step
come from SHAKE-256 of key and number, so seeds are independent of one another and of all records. Steps and rows a step are
constants, so that nothing about one shard depends on how large another is. Hence a record changes one vote at most, as in
teacher/mechanisms/pate/linear_ensemble.py, whose shards these are. A shard without records votes for class 0.

On a CPU they are trained one by one (batching does not pay there), in as many processes as allowed; on an accelerator many at
once by torch.func, each in the place of its number in batches of one size, beside blanks where no other is missing, so that
which others are trained does not show. Whether their contents show is tested on made-up images before private ones are
looked at; where they do, each is trained alone. Each is kept in the custodian's directory as soon as it is trained, under a
digest of all that it was made from: a killed training goes on where it was, and a record that comes or goes costs one training
(of a batch). A file is replaced when its shard's records change; what was learned from a removed record goes with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from labelwall.teacher.features.cache import row_digests
from labelwall.teacher.mechanisms.pate.linear_ensemble import shards
from labelwall.teacher.records.sources import Records
from labelwall.teacher.search.devices import device_of, reproducible
from labelwall.wall.errors import InvalidInput
from labelwall.wall.networks.architectures import standardise

VERSION = 1  # raise when the same shard would give another classifier
STEPS, BATCH = 120, 32  # some 16 passes over 240 rows
PEAK_RATE, MOMENTUM, DECAY = 0.05, 0.9, 1e-3  # of SGD, falling linearly to 0
CHANNELS = 16, 32
TOGETHER = 64  # classifiers trained at once on an accelerator, a constant
ASKED_AT_ONCE = 256

Progress = Callable[[int, int], None]
Weights = dict[str, torch.Tensor]


class CnnEnsemble:
    """``teachers`` networks over images, trained at once or read from ``directory``, the custodian's own.

    ``records``: images. ``key``: of the shards and of all seeds. ``workers``: processes, on a CPU. ``device``: type of the one
    that trains them; another one's classifiers are others. Votes are counted on the CPU.
    Raises InvalidInput for feature vectors and for images below 8 x 8 pixels.
    """

    def __init__(
        self,
        records: Records,
        *,
        num_classes: int,
        teachers: int,
        key: bytes,
        directory: Path,
        workers: int = 1,
        device: str = "cpu",
        progress: Progress | None = None,
    ) -> None:
        shape = records.inputs.shape[1:]
        if len(shape) != 3 or min(shape[:2]) < 8:
            raise InvalidInput(
                "mechanism.classifier",
                "linear for feature vectors and for images below 8 x 8 pixels",
                "cnn",
            )
        self._num_classes = num_classes
        jobs = _jobs(records, num_classes, teachers, key, device)
        self._weights = _kept_or_trained(
            jobs, directory, partial(_trained, jobs, workers, device_of(device)), progress
        )

    def __repr__(self) -> str:
        return f"CnnEnsemble(teachers={len(self._weights)})"

    def votes(self, images: np.ndarray) -> np.ndarray:
        """How many networks choose each class, ties to the lowest: int64 [n, n_classes] of uint8 [n, h, w, c]."""
        counts = np.zeros((len(images), self._num_classes), dtype=np.int64)
        for start in range(0, len(images), ASKED_AT_ONCE):
            part = slice(start, start + ASKED_AT_ONCE)
            pixels = _pixels(images[part])
            rows = np.arange(start, start + len(pixels))
            with torch.inference_mode():
                for weights in self._weights:
                    np.add.at(counts, (rows, logits(weights, pixels).argmax(dim=1).numpy()), 1)
        return counts


def forget_classifiers(directory: Path) -> None:
    """Delete all classifiers; those that are needed again are trained again."""
    for path in _folder(directory).glob("*"):
        path.unlink()


@dataclass(frozen=True)
class Job:
    """One classifier to be: ``inputs`` uint8 [n, h, w, c] and ``labels`` int64 [n] of its shard in order of their ids."""

    name: str
    number: int
    seed: bytes = field(repr=False)
    inputs: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    num_classes: int
    digest: bytes = field(repr=False)


def _jobs(
    records: Records, num_classes: int, teachers: int, key: bytes, device: str = "cpu"
) -> list[Job]:
    digests, shard = row_digests(records), shards(records.ids, key, teachers)
    order = np.argsort(records.ids, kind="stable")
    jobs = []
    for number in range(teachers):
        rows = order[shard[order] == number]
        settings = f"cnn {VERSION} {num_classes} {teachers} {number} {records.inputs.shape[1:]} "
        seed = hashlib.blake2b(settings.encode(), key=key).digest()
        digest = hashlib.blake2b(
            f"{device} ".encode() + seed + b"".join(digests[row] for row in rows)
        ).digest()
        name = f"{teachers}-{number}.npz"
        jobs.append(
            Job(name, number, seed, records.inputs[rows], records.labels[rows], num_classes, digest)
        )
    return jobs


def _kept_or_trained(
    jobs: list[Job],
    directory: Path,
    trained: Callable[[list[Job]], Iterator[tuple[Job, Weights]]],
    progress: Progress | None,
) -> list[Weights]:
    folder = _folder(directory)
    folder.mkdir(mode=0o700, exist_ok=True)
    for part in folder.glob("*.part"):
        part.unlink()
    found = {job.name: _load(folder / job.name, job.digest) for job in jobs}
    missing = [job for job in jobs if found[job.name] is None]
    for job in missing:
        (folder / job.name).unlink(
            missing_ok=True
        )  # of other rows: gone before anything else can fail
    for done, (job, weights) in enumerate(trained(missing), start=1):
        _save(folder / job.name, job.digest, weights)
        found[job.name] = weights
        if progress is not None:
            progress(len(jobs) - len(missing) + done, len(jobs))
    return [kept for job in jobs if (kept := found[job.name]) is not None]


def _trained(
    everyone: list[Job], workers: int, device: torch.device, missing: list[Job]
) -> Iterator[tuple[Job, Weights]]:
    """Each job that is missing with its weights, in order, as soon as they are there."""
    from joblib import Parallel, delayed

    if device.type != "cpu" and missing:
        yield from _in_batches(missing, min(TOGETHER, len(everyone)), device)
        return
    # max_nbytes: private rows go to a process through a pipe, never through a file of the system's temporary folder
    alone = Parallel(
        n_jobs=min(workers, max(1, len(missing))), return_as="generator", max_nbytes=None
    )
    yield from zip(missing, alone(delayed(train_alone)(job) for job in missing), strict=True)


def _in_batches(
    missing: list[Job], size: int, device: torch.device
) -> Iterator[tuple[Job, Weights]]:
    """Jobs by rising number, always ``size`` at once; one at once where the device lets others' contents show."""
    if size > 1 and company_shows(missing[0], size, device):
        size = 1
    batches: dict[int, list[Job]] = {}
    for job in missing:
        batches.setdefault(job.number // size, []).append(job)
    for batch in batches.values():
        places = [job.number % size for job in batch]
        together = [_blank(batch[0])] * size
        for place, job in zip(places, batch, strict=True):
            together[place] = job
        found = train_together(together, device)
        yield from ((job, found[place]) for place, job in zip(places, batch, strict=True))


def company_shows(like: Job, size: int, device: torch.device) -> bool:
    """Whether a bit of a classifier differs with those beside it, tried with PUBLIC made-up images of the shape of ``like``'s."""
    shape, labels = (2 * BATCH, *like.inputs.shape[1:]), np.arange(2 * BATCH) % like.num_classes
    seeds = [bytes([place]) for place in range(size)]
    pixels = [
        (256 * _uniform(seed, int(np.prod(shape)))).astype(np.uint8).reshape(shape)
        for seed in seeds
    ]
    made = [
        replace(like, seed=seed, inputs=inputs, labels=labels)
        for seed, inputs in zip(seeds, pixels, strict=True)
    ]
    among = train_together(made, device)
    beside_blanks = train_together(
        [job if place % 2 else _blank(like) for place, job in enumerate(made)], device
    )
    return any(
        not torch.equal(among[p][name], beside_blanks[p][name])
        for p in range(1, size, 2)
        for name in among[p]
    )


def _blank(like: Job) -> Job:
    """A classifier of nobody."""
    return replace(like, inputs=like.inputs[:0], labels=like.labels[:0])


def train_alone(job: Job) -> Weights:
    """One classifier by plain steps, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _descend(torch.func.grad(_loss), *_start(job))
    finally:
        torch.set_num_threads(threads)


def train_together(jobs: list[Job], device: torch.device) -> list[Weights]:
    """Many classifiers at once: the same steps, batched by torch.func, with kernels that give the same bits each time."""
    starts = [_start(job) for job in jobs]
    weights = {
        name: torch.stack([start[0][name] for start in starts]).to(device) for name in starts[0][0]
    }
    pixels = torch.stack([start[1] for start in starts], dim=1).to(device)
    labels = torch.stack([start[2] for start in starts], dim=1).to(device)
    with reproducible():
        found = _descend(torch.vmap(torch.func.grad(_loss)), weights, pixels, labels)
    return [{name: tensor[row].cpu() for name, tensor in found.items()} for row in range(len(jobs))]


def _descend(
    gradient: Callable[..., Weights], weights: Weights, pixels: torch.Tensor, labels: torch.Tensor
) -> Weights:
    """SGD with momentum. ``pixels``: float32 [STEPS, (classifiers,) BATCH, c, h, w]; ``labels``: int64 alike."""
    speed = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    for step in range(STEPS):
        rate, slope = PEAK_RATE * (1 - step / STEPS), gradient(weights, pixels[step], labels[step])
        for name in weights:
            speed[name] = MOMENTUM * speed[name] + slope[name] + DECAY * weights[name]
            weights[name] = weights[name] - rate * speed[name]
    return weights


def _loss(weights: Weights, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits(weights, pixels), labels)


def logits(weights: Weights, pixels: torch.Tensor) -> torch.Tensor:
    """float32 [n, n_classes] of float32 [n, c, h, w]: convolutions of 5 x 5 and 3 x 3, each with pooling, and one linear map."""
    for name, around in (("first", 2), ("second", 1)):
        pixels = F.conv2d(pixels, weights[name], weights[f"{name}_bias"], padding=around)
        pixels = F.relu(F.max_pool2d(pixels, 2))
    return F.linear(pixels.flatten(1), weights["head"], weights["head_bias"])


def _start(job: Job) -> tuple[Weights, torch.Tensor, torch.Tensor]:
    """(initial weights, each step's pixels [STEPS, BATCH, c, h, w], their labels int64 [STEPS, BATCH]); zeros for no rows."""
    height, width, channels = job.inputs.shape[1:]
    flat = CHANNELS[1] * (height // 4) * (width // 4)
    shapes = {
        "first": (CHANNELS[0], channels, 5, 5),
        "second": (CHANNELS[1], CHANNELS[0], 3, 3),
        "head": (job.num_classes, flat),
    }
    stream = _uniform(
        job.seed, sum(int(np.prod(shape)) for shape in shapes.values()) + STEPS * BATCH
    )
    weights, used = {}, 0
    for name, shape in shapes.items():
        bound, size = (
            float(np.sqrt(6 / np.prod(shape[1:]))) / 2,
            int(np.prod(shape)),
        )  # half of He et al. 2015
        drawn = (2 * stream[used : used + size] - 1) * bound
        weights[name] = torch.from_numpy(drawn.astype(np.float32).reshape(shape))
        weights[f"{name}_bias"] = torch.zeros(shape[0])
        used += size
    if not len(job.labels):
        nothing = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        return (
            nothing,
            torch.zeros(STEPS, BATCH, channels, height, width),
            torch.zeros(STEPS, BATCH, dtype=torch.int64),
        )
    rows = np.minimum((stream[used:] * len(job.labels)).astype(np.int64), len(job.labels) - 1)
    pixels = _pixels(job.inputs)[rows].reshape(STEPS, BATCH, channels, height, width)
    return weights, pixels, torch.from_numpy(job.labels[rows]).reshape(STEPS, BATCH)


def _uniform(seed: bytes, count: int) -> np.ndarray:
    """float64 [count] in [0, 1) from SHAKE-256: a function of the seed, which only the custodian's key can tell."""
    return np.frombuffer(hashlib.shake_256(seed).digest(4 * count), dtype="<u4") / 2.0**32


def _pixels(images: np.ndarray) -> torch.Tensor:
    """float32 [n, c, h, w] in -1..1: standardised by constants, not by any rows."""
    x = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).float() / 255
    return standardise(x, (0.5,) * x.shape[1], (0.5,) * x.shape[1])


def _folder(directory: Path) -> Path:
    return directory / "classifiers"


def _load(path: Path, digest: bytes) -> Weights | None:
    """A classifier of just these rows, None where there is none."""
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as stored:
        if stored["digest"].tobytes() != digest:
            return None
        return {name: torch.from_numpy(stored[name]) for name in stored.files if name != "digest"}


def _save(path: Path, digest: bytes, weights: Weights) -> None:
    scratch = path.with_suffix(".part")
    with scratch.open("wb") as file:
        arrays = {name: tensor.numpy() for name, tensor in weights.items()}
        np.savez(file, digest=np.frombuffer(digest, dtype=np.uint8), **arrays)  # type: ignore[arg-type]
    scratch.replace(path)
