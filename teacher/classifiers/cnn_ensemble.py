"""PATE's teachers as in the papers: a small convolutional network for each shard of the images.

A classifier is a function of its own shard, its number and the custodian's key: initial weights and
the rows of each step come from SHAKE-256 of key and number, and the numbers of steps and of rows
per step are constants (docs/privacy.md, section 14). linear_ensemble.py defines the shards.

Each is trained by itself on one CPU thread, in as many processes as allowed. It is stored in the
custodian's directory as soon as it is trained, with a digest of all its inputs: a killed training
goes on, and a record more costs one training. What a removed record taught is deleted.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ...wall.errors import InvalidInput
from ...wall.files import whole
from ...wall.networks import one_thread
from ...wall.preprocessing import Preprocessing
from ...wall.progress import TaskProgress, no_progress
from ..records.embedding_cache import NETWORKS, row_digests
from ..records.private_records import Records
from .linear_ensemble import shard_numbers

STEPS, BATCH = 120, 32  # some 16 passes over 240 rows
PEAK_RATE, MOMENTUM, DECAY = 0.05, 0.9, 1e-3  # of SGD, falling linearly to 0
CHANNELS = 16, 32
IMAGES_PER_CALL = 256

Weights = dict[str, torch.Tensor]
Job = tuple[bytes, np.ndarray, np.ndarray, int]  # arguments of train_one


class CnnEnsemble:
    """``teachers`` networks over images, read from the custodian's ``directory`` or trained.

    ``records``: images. ``key``: of the shards and of all seeds. ``workers``: processes. Raises
    InvalidInput for feature vectors and for images below 8 x 8 pixels.
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
        progress: TaskProgress = no_progress,
    ) -> None:
        shape = records.inputs.shape[1:]
        if len(shape) != 3 or min(shape[:2]) < 8:
            rule = "linear for feature vectors and for images below 8 x 8 pixels"
            raise InvalidInput("mechanism.classifier", rule, "cnn")
        self._num_classes = num_classes
        folder = directory / NETWORKS
        folder.mkdir(mode=0o700, exist_ok=True)
        jobs = {folder / name: job for name, job in _jobs(records, num_classes, teachers, key)}
        for path in set(folder.glob(f"{teachers}-*")) - jobs.keys():
            path.unlink()  # of other records, or half a file: deleted before anything else can fail
        missing = {path: job for path, job in jobs.items() if not path.exists()}
        for done, (path, weights) in enumerate(_train(missing, workers), start=1):
            arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in weights.items()}
            with whole(path) as file:
                np.savez(file, **arrays)
            progress(teachers - len(missing) + done, teachers)
        self._weights = [_load(path) for path in jobs]

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


def _jobs(
    records: Records, num_classes: int, teachers: int, key: bytes
) -> Iterator[tuple[str, Job]]:
    """Jobs by shard, with rows in the order of their ids; a file's name digests all inputs."""
    digests = row_digests(records)
    shard = shard_numbers(records.owners, key, teachers)
    order = np.argsort(records.ids, kind="stable")
    for number in range(teachers):
        rows = order[shard[order] == number]
        settings = f"cnn {num_classes} {teachers} {number} {records.inputs.shape[1:]} "
        seed = hashlib.blake2b(settings.encode(), key=key).digest()
        inputs = hashlib.blake2b(b"".join(digests[row] for row in rows), key=seed).hexdigest()
        job = seed, records.inputs[rows], records.labels[rows], num_classes
        yield f"{teachers}-{inputs}.npz", job


def _train(missing: dict[Path, Job], workers: int) -> Iterator[tuple[Path, Weights]]:
    from joblib import Parallel, delayed

    # max_nbytes=None: private rows reach a process through a pipe, never through a file
    processes = min(workers, max(1, len(missing)))
    parallel = Parallel(n_jobs=processes, return_as="generator", max_nbytes=None)
    trained = parallel(delayed(train_one)(*job) for job in missing.values())
    yield from zip(missing, trained, strict=True)


def _load(path: Path) -> Weights:
    with np.load(path, allow_pickle=False) as stored:
        return {name: torch.from_numpy(array) for name, array in stored.items()}


def train_one(seed: bytes, images: np.ndarray, codes: np.ndarray, num_classes: int) -> Weights:
    """One classifier, on one thread; zeros without records.

    ``images``: uint8 [n, h, w, c]; ``codes``: int64 [n], their labels.
    """
    weights, rows = _start(seed, images, num_classes)
    if not len(codes):
        return {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    pixels, labels = _pixels(images), torch.from_numpy(codes)
    leaves = {name: tensor.requires_grad_() for name, tensor in weights.items()}
    optimizer = torch.optim.SGD(
        leaves.values(), lr=PEAK_RATE, momentum=MOMENTUM, weight_decay=DECAY
    )
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / STEPS)
    with one_thread():
        for batch in rows:
            optimizer.zero_grad()
            F.cross_entropy(logits(leaves, pixels[batch]), labels[batch]).backward()
            optimizer.step()
            falling.step()
    return {name: tensor.detach() for name, tensor in leaves.items()}


def logits(weights: Weights, pixels: torch.Tensor) -> torch.Tensor:
    """float32 [n, n_classes] of float32 [n, c, h, w].

    Convolutions of 5 x 5 and 3 x 3, each with pooling, and one linear map.
    """
    for name, padding in (("first", 2), ("second", 1)):
        pixels = F.conv2d(pixels, weights[name], weights[f"{name}_bias"], padding=padding)
        pixels = F.relu(F.max_pool2d(pixels, 2))
    return F.linear(pixels.flatten(1), weights["head"], weights["head_bias"])


def _start(seed: bytes, images: np.ndarray, num_classes: int) -> tuple[Weights, torch.Tensor]:
    """(initial weights, int64 [STEPS, BATCH] rows of each step)."""
    count, height, width, channels = images.shape
    flat = CHANNELS[1] * (height // 4) * (width // 4)
    shapes = {
        "first": (CHANNELS[0], channels, 5, 5),
        "second": (CHANNELS[1], CHANNELS[0], 3, 3),
        "head": (num_classes, flat),
    }
    sizes = {name: int(np.prod(shape)) for name, shape in shapes.items()}
    stream = _uniform(seed, sum(sizes.values()) + STEPS * BATCH)
    weights = {}
    for name, shape in shapes.items():
        drawn, stream = stream[: sizes[name]], stream[sizes[name] :]
        bound = float(np.sqrt(6 / np.prod(shape[1:]))) / 2  # half of He et al. 2015
        values = (2 * drawn - 1) * bound
        weights[name] = torch.from_numpy(values.astype(np.float32).reshape(shape))
        weights[f"{name}_bias"] = torch.zeros(shape[0])
    rows = np.minimum((stream * count).astype(np.int64), count - 1)
    return weights, torch.from_numpy(rows).reshape(STEPS, BATCH)


def _uniform(seed: bytes, count: int) -> np.ndarray:
    """float64 [count] in [0, 1) from SHAKE-256 of the seed, which needs the custodian's key."""
    return np.frombuffer(hashlib.shake_256(seed).digest(4 * count), dtype="<u4") / 2.0**32


def _pixels(images: np.ndarray) -> torch.Tensor:
    """float32 [n, c, h, w] in -1..1: standardised by constants, not by the rows."""
    half = (0.5,) * images.shape[-1]
    return Preprocessing(half, half)(images)
