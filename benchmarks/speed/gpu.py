r"""What one GPU does of labelwall's work beside the processor, in at most eight minutes.

    python benchmarks/speed/gpu.py --record
    python benchmarks/speed/gpu.py --images CIFAR10.zip --private 6000 --public 1500 --record

Parts, each on the processor and then on the GPU: exact search (queries a second among 60,000 rows
of 1,296 int8), features (images of 32 pixels a second through EfficientNet-Lite2 at three depths),
and a pretrained student (seconds of its training, after a step that compiles; the GPU trains all
of the network in bfloat16, the processor the last blocks). With ``--images``, a zip of class
folders, a whole run with `--refine` as well: seconds, and % right of the test rows. Where there is
no GPU its numbers are missing.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import labelwall as lw
from labelwall.benchmarks.accuracy.fine_tuning import read
from labelwall.benchmarks.shared.record import add_record, record
from labelwall.student.batches import Lesson, Pool
from labelwall.student.fine_tuning import divide, keep_views, start
from labelwall.student.public_settings import STAGES
from labelwall.student.student_config import StudentConfig
from labelwall.student.train import train
from labelwall.teacher.search.accelerators import index_on
from labelwall.wall.features.embedder import Embedder
from labelwall.wall.label_kinds import ClassLabels
from labelwall.wall.networks import efficientnet_lite
from labelwall.wall.progress import no_progress

CLASSES, SHAPE = 10, (32, 32, 3)
COLUMNS = ["part", "unit", "cpu", "gpu"]
NEAREST = 300


def rate(work: Callable[[], int], least: float = 5.0) -> float:
    """Units a second of ``work``, which returns how many it did; repeated for ``least`` seconds."""
    work()  # compiles, and fills caches
    done, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < least or not done:
        done += work()
    return done / spent


def search(device: str, rows: int) -> float:
    rng = np.random.default_rng(0)
    records = rng.integers(-63, 64, (rows, 1296), dtype=np.int8)
    queries = rng.integers(-63, 64, (256, 1296), dtype=np.int8)
    index = index_on(torch.device(device), records, np.arange(rows))
    return rate(lambda: len(index.nearest(queries, min(NEAREST, rows))[0]))


def features(device: str, threads: int) -> float:
    images = np.random.default_rng(0).integers(0, 256, (256, *SHAPE), dtype=np.uint8)
    spec = efficientnet_lite(STAGES, SHAPE, CLASSES)
    embedder = Embedder(replace(spec, center=(), scale=1.0), workers=threads, device=device)
    return rate(lambda: len(embedder.features(images)))


def settings(device: str) -> dict[str, Any]:
    """Settings of a pretrained student on a device."""
    chosen: dict[str, Any] = {"backbone": "pretrained", "objective": "fixmatch"}
    chosen |= {"augment": "natural", "learning_rate": 5e-4}
    if device == "cuda":
        chosen |= {"accelerator": "gpu", "precision": "bf16-mixed", "trained_blocks": 0}
    return chosen


def training(device: str, threads: int, steps: int) -> float:
    """Seconds of so many steps on 512 images, their views included."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (512, *SHAPE), dtype=np.uint8)
    chances = rng.dirichlet(np.ones(CLASSES), len(images)).astype(np.float32)
    labels = ClassLabels.of(CLASSES)
    config = StudentConfig(**settings(device), steps=steps)
    first = efficientnet_lite(STAGES, SHAPE, CLASSES)
    network = divide(start(first, config, labels), config.trained_blocks)
    with TemporaryDirectory() as name:
        folder, began = Path(name), time.perf_counter()
        file = folder / "views.npy"
        views = keep_views(file, network.front, images, config, 0, no_progress, threads)
        train(
            config,
            Lesson(pool=Pool(views, labels), labels=chances.argmax(axis=1), chances=chances),
            run_dir=folder,
            seed=0,
            begin=(network.rest, network.depths),
        )
        return time.perf_counter() - began


def refined(device: str, archive: Path, private: int, public: int) -> tuple[float, float]:
    """(seconds, % right) of a whole run in which the features' network learns."""
    counts = {"test": 2000, "public": public, "private": private}
    splits = read(archive, counts, 0)
    data = lw.Data(splits["private"], splits["public"][0], splits["test"])
    with TemporaryDirectory() as name:
        began = time.perf_counter()
        how = {"run_dir": f"{name}/run", "custody": f"{name}/custody", "quiet": True}
        model = lw.fit(data, 1.0, student=settings(device), device=device, **how)
        return time.perf_counter() - began, 100 * model.summary.test_accuracy


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=Path, help="zip of class folders, for the whole run")
    parser.add_argument("--private", type=int, default=6000, help="rows of it [count]")
    parser.add_argument("--public", type=int, default=1500, help="rows of it [count]")
    parser.add_argument("--rows", type=int, default=60_000, help="that are searched [count]")
    parser.add_argument("--steps", type=int, default=100, help="of the training [count]")
    parser.add_argument("--threads", type=int, default=2, help="of the processor [count]")
    add_record(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    parts: dict[str, Callable[[str], float]] = {
        "exact search | queries a second": lambda at: search(at, options.rows),
        "features of images | images a second": lambda at: features(at, options.threads),
        "student's training | seconds": lambda at: training(at, options.threads, options.steps),
    }
    if options.images:
        runs = {at: refined(at, options.images, options.private, options.public) for at in devices}
        parts |= {"run with --refine | seconds": lambda at: runs[at][0]}
        parts |= {"run with --refine | % right": lambda at: runs[at][1]}
    rows = list[list[Any]]()
    for name, measure in parts.items():
        found = {at: round(measure(at), 1) for at in devices}
        rows.append([*name.split(" | "), found["cpu"], found.get("cuda")])
        print(f"{name}: {found['cpu']}, on the GPU {found.get('cuda', 'unmeasured')}", flush=True)
    if options.record:
        record("gpu", COLUMNS, rows, keys=2, seeds=[0])


if __name__ == "__main__":
    main()
