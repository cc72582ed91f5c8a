"""PATE's teachers as in the papers: a small convolutional network for each shard of the images.

A classifier is a function of its own shard, its number and the custodian's key: initial weights and
the rows of each step come from SHAKE-256 of key and number, so seeds are independent of one another
and of all records. The numbers of steps and of rows per step are constants, so that nothing about
one shard depends on the size of another. Hence a record changes one vote at most, as in
teacher/classifiers/linear_ensemble.py, which defines the shards. A shard without records votes
for class 0.

On a CPU they are trained one by one (batching is no faster there), in as many processes as allowed.
On an accelerator torch.func trains them in batches of one size: each at the place of its number,
with blanks where no other is due, so that a classifier does not depend on which others are trained.
Whether it depends on their contents is tested on synthetic images before private ones are read; if
so, each is trained by itself. A classifier is stored in the custodian's directory as soon as it is
trained, under a digest of all its inputs: an interrupted training resumes, and adding or removing a
record costs one training (of a batch). A file is replaced when its shard's records change, which
deletes what was learned from a removed record.
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

from ...wall.errors import InvalidInput
from ...wall.preprocessing import Preprocessing
from ...wall.progress import TaskProgress
from ..features.cache import row_digests
from ..records.sources import Records
from ..search.devices import device_of, reproducible
from .linear_ensemble import shard_numbers

VERSION = 1  # raise when the same shard would give another classifier
STEPS, BATCH = 120, 32  # some 16 passes over 240 rows
PEAK_RATE, MOMENTUM, DECAY = 0.05, 0.9, 1e-3  # of SGD, falling linearly to 0
CHANNELS = 16, 32
CLASSIFIERS_PER_BATCH = 64  # trained at once on an accelerator
IMAGES_PER_CALL = 256

Weights = dict[str, torch.Tensor]


class CnnEnsemble:
    """``teachers`` networks over images, read from the custodian's ``directory`` or trained.

    ``records``: images. ``key``: of the shards and of all seeds. ``workers``: processes, on a CPU.
    ``device``: type of the training device; each type has its own classifiers. Votes are counted on
    the CPU. Raises InvalidInput for feature vectors and for images below 8 x 8 pixels.
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
        progress: TaskProgress | None = None,
    ) -> None:
        shape = records.inputs.shape[1:]
        if len(shape) != 3 or min(shape[:2]) < 8:
            rule = "linear for feature vectors and for images below 8 x 8 pixels"
            raise InvalidInput("mechanism.classifier", rule, "cnn")
        self._num_classes = num_classes
        jobs = _jobs(records, num_classes, teachers, key, device)
        train = partial(_train, jobs, workers, device_of(device))
        self._weights = _load_or_train(jobs, directory, train, progress)

    def __repr__(self) -> str:
        return f"CnnEnsemble(teachers={len(self._weights)})"

    def votes(self, images: np.ndarray) -> np.ndarray:
        """Number of networks that choose each class, ties to the lowest: int64 [n, n_classes].

        ``images``: uint8 [n, h, w, c].
        """
        counts = np.zeros((len(images), self._num_classes), dtype=np.int64)
        for start in range(0, len(images), IMAGES_PER_CALL):
            pixels = _pixels(images[start : start + IMAGES_PER_CALL])
            rows = np.arange(start, start + len(pixels))
            with torch.inference_mode():
                for weights in self._weights:
                    np.add.at(counts, (rows, logits(weights, pixels).argmax(dim=1).numpy()), 1)
        return counts


def forget_classifiers(directory: Path) -> None:
    """Delete all stored classifiers; the next CnnEnsemble trains them again."""
    for path in _folder(directory).glob("*"):
        path.unlink()


@dataclass(frozen=True)
class Job:
    """The training of one classifier.

    ``inputs``: uint8 [n, h, w, c], and ``labels``: int64 [n], of its shard in order of their ids.
    """

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
    digests = row_digests(records)
    shard = shard_numbers(records.owners, key, teachers)
    order = np.argsort(records.ids, kind="stable")
    jobs = []
    for number in range(teachers):
        rows = order[shard[order] == number]
        settings = f"cnn {VERSION} {num_classes} {teachers} {number} {records.inputs.shape[1:]} "
        seed = hashlib.blake2b(settings.encode(), key=key).digest()
        inputs, labels = records.inputs[rows], records.labels[rows]
        content = f"{device} ".encode() + seed + b"".join(digests[row] for row in rows)
        digest = hashlib.blake2b(content).digest()
        name = f"{teachers}-{number}.npz"
        jobs.append(Job(name, number, seed, inputs, labels, num_classes, digest))
    return jobs


def _load_or_train(
    jobs: list[Job],
    directory: Path,
    train: Callable[[list[Job]], Iterator[tuple[Job, Weights]]],
    progress: TaskProgress | None,
) -> list[Weights]:
    folder = _folder(directory)
    folder.mkdir(mode=0o700, exist_ok=True)
    for part in folder.glob("*.part"):
        part.unlink()
    trained = {job.name: _load(folder / job.name, job.digest) for job in jobs}
    missing = [job for job in jobs if trained[job.name] is None]
    for job in missing:
        # of other rows: deleted before anything else can fail
        (folder / job.name).unlink(missing_ok=True)
    for done, (job, weights) in enumerate(train(missing), start=1):
        _save(folder / job.name, job.digest, weights)
        trained[job.name] = weights
        if progress is not None:
            progress(len(jobs) - len(missing) + done, len(jobs))
    return [each for job in jobs if (each := trained[job.name]) is not None]


def _train(
    jobs: list[Job], workers: int, device: torch.device, missing: list[Job]
) -> Iterator[tuple[Job, Weights]]:
    """Each missing job with its weights, in order, as soon as it is trained."""
    from joblib import Parallel, delayed

    if device.type != "cpu" and missing:
        yield from _in_batches(missing, min(CLASSIFIERS_PER_BATCH, len(jobs)), device)
        return
    # max_nbytes=None: private rows reach a process through a pipe, never through a temporary file
    processes = min(workers, max(1, len(missing)))
    parallel = Parallel(n_jobs=processes, return_as="generator", max_nbytes=None)
    yield from zip(missing, parallel(delayed(train_one)(job) for job in missing), strict=True)


def _in_batches(
    missing: list[Job], size: int, device: torch.device
) -> Iterator[tuple[Job, Weights]]:
    """Jobs by ascending number, ``size`` at a time; one at a time where ``depends_on_others``."""
    if size > 1 and depends_on_others(missing[0], size, device):
        size = 1
    batches: dict[int, list[Job]] = {}
    for job in missing:
        batches.setdefault(job.number // size, []).append(job)
    for batch in batches.values():
        places = [job.number % size for job in batch]
        padded = [_blank(batch[0])] * size
        for place, job in zip(places, batch, strict=True):
            padded[place] = job
        weights = train_batch(padded, device)
        yield from ((job, weights[place]) for place, job in zip(places, batch, strict=True))


def depends_on_others(like: Job, size: int, device: torch.device) -> bool:
    """Whether a bit of a classifier depends on the others of its batch.

    Tried with PUBLIC synthetic images of the shape of ``like``'s.
    """
    shape, labels = (2 * BATCH, *like.inputs.shape[1:]), np.arange(2 * BATCH) % like.num_classes
    jobs = []
    for seed in (bytes([place]) for place in range(size)):
        pixels = 256 * _uniform(seed, int(np.prod(shape)))
        inputs = pixels.astype(np.uint8).reshape(shape)
        jobs.append(replace(like, seed=seed, inputs=inputs, labels=labels))
    beside_others = train_batch(jobs, device)
    blanked = [job if place % 2 else _blank(like) for place, job in enumerate(jobs)]
    beside_blanks = train_batch(blanked, device)
    return any(
        not torch.equal(beside_others[place][name], beside_blanks[place][name])
        for place in range(1, size, 2)
        for name in beside_others[place]
    )


def _blank(like: Job) -> Job:
    """A job without records."""
    return replace(like, inputs=like.inputs[:0], labels=like.labels[:0])


def train_one(job: Job) -> Weights:
    """One classifier by plain steps, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _sgd(torch.func.grad(_loss), *_start(job))
    finally:
        torch.set_num_threads(threads)


def train_batch(jobs: list[Job], device: torch.device) -> list[Weights]:
    """Many classifiers by the same steps, batched by torch.func, with deterministic kernels."""
    initial, inputs, targets = zip(*(_start(job) for job in jobs), strict=True)
    weights = {
        name: torch.stack([each[name] for each in initial]).to(device) for name in initial[0]
    }
    pixels, labels = (torch.stack(each, dim=1).to(device) for each in (inputs, targets))
    with reproducible():
        weights = _sgd(torch.vmap(torch.func.grad(_loss)), weights, pixels, labels)
    return [
        {name: tensor[row].cpu() for name, tensor in weights.items()} for row in range(len(jobs))
    ]


def _sgd(
    gradient: Callable[..., Weights], weights: Weights, pixels: torch.Tensor, labels: torch.Tensor
) -> Weights:
    """Final weights of SGD with momentum.

    ``pixels``: float32 [STEPS, (classifiers,) BATCH, c, h, w]; ``labels``: int64 [STEPS,
    (classifiers,) BATCH].
    """
    velocity = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    for step in range(STEPS):
        rate = PEAK_RATE * (1 - step / STEPS)
        slope = gradient(weights, pixels[step], labels[step])
        for name in weights:
            velocity[name] = MOMENTUM * velocity[name] + slope[name] + DECAY * weights[name]
            weights[name] = weights[name] - rate * velocity[name]
    return weights


def _loss(weights: Weights, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits(weights, pixels), labels)


def logits(weights: Weights, pixels: torch.Tensor) -> torch.Tensor:
    """float32 [n, n_classes] of float32 [n, c, h, w].

    Convolutions of 5 x 5 and 3 x 3, each with pooling, and one linear map.
    """
    for name, padding in (("first", 2), ("second", 1)):
        pixels = F.conv2d(pixels, weights[name], weights[f"{name}_bias"], padding=padding)
        pixels = F.relu(F.max_pool2d(pixels, 2))
    return F.linear(pixels.flatten(1), weights["head"], weights["head_bias"])


def _start(job: Job) -> tuple[Weights, torch.Tensor, torch.Tensor]:
    """(initial weights, float32 [STEPS, BATCH, c, h, w] pixels, int64 [STEPS, BATCH] labels).

    All are zeros for a job without records.
    """
    height, width, channels = job.inputs.shape[1:]
    flat = CHANNELS[1] * (height // 4) * (width // 4)
    shapes = {
        "first": (CHANNELS[0], channels, 5, 5),
        "second": (CHANNELS[1], CHANNELS[0], 3, 3),
        "head": (job.num_classes, flat),
    }
    sizes = {name: int(np.prod(shape)) for name, shape in shapes.items()}
    stream = _uniform(job.seed, sum(sizes.values()) + STEPS * BATCH)
    weights = {}
    for name, shape in shapes.items():
        drawn, stream = stream[: sizes[name]], stream[sizes[name] :]
        bound = float(np.sqrt(6 / np.prod(shape[1:]))) / 2  # half of He et al. 2015
        values = (2 * drawn - 1) * bound
        weights[name] = torch.from_numpy(values.astype(np.float32).reshape(shape))
        weights[f"{name}_bias"] = torch.zeros(shape[0])
    if not len(job.labels):
        zeros = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        pixels = torch.zeros(STEPS, BATCH, channels, height, width)
        return zeros, pixels, torch.zeros(STEPS, BATCH, dtype=torch.int64)
    rows = np.minimum((stream * len(job.labels)).astype(np.int64), len(job.labels) - 1)
    pixels = _pixels(job.inputs)[rows].reshape(STEPS, BATCH, channels, height, width)
    return weights, pixels, torch.from_numpy(job.labels[rows]).reshape(STEPS, BATCH)


def _uniform(seed: bytes, count: int) -> np.ndarray:
    """float64 [count] in [0, 1) from SHAKE-256 of the seed, which needs the custodian's key."""
    return np.frombuffer(hashlib.shake_256(seed).digest(4 * count), dtype="<u4") / 2.0**32


def _pixels(images: np.ndarray) -> torch.Tensor:
    """float32 [n, c, h, w] in -1..1: standardised by constants, not by the rows."""
    half = (0.5,) * images.shape[-1]
    return Preprocessing(half, half)(images)


def _folder(directory: Path) -> Path:
    return directory / "classifiers"


def _load(path: Path, digest: bytes) -> Weights | None:
    """The stored classifier of exactly the digested inputs; None where there is none."""
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
        stored = np.frombuffer(digest, dtype=np.uint8)
        np.savez(file, digest=stored, **arrays)  # type: ignore[arg-type]
    scratch.replace(path)
