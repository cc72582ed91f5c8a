"""A tiny experiment on feature vectors: three clusters, two rounds, seconds to run."""

from pathlib import Path
from typing import Any

import numpy as np
import yaml

CLASSES, DIMENSIONS = 3, 8

CONFIG = """
data: {source: arrays, path: data.npz}
budget: {epsilon: 1000.0, delta: 1.0e-5}
mechanism: {k: 15, threshold: 4, sigma_screen: 3.0, sigma_vote: 3.0, sample_rate: 0.2}
caps: {asked: 60, answered: 60}
rounds: [{queries: 12}, {queries: 12}]
student:
  {backbone: mlp, objective: supervised, steps: 20, batch_labelled: 16, batch_unlabelled: 16,
   doubtful_folds: 2, doubtful_steps: 5}
batch_size: 5
threads: 1
workers: 1
"""


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % CLASSES
    return (rng.normal(size=(n, DIMENSIONS)) + 2 * np.eye(CLASSES, DIMENSIONS)[labels]).astype(
        np.float32
    ), labels


def integers(x: np.ndarray) -> np.ndarray:
    """Rows at length 63, int8 [n, d], without the product's code."""
    x = x.astype(np.float64)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return np.clip(np.rint(63 * unit), -63, 63).astype(np.int8)


def write_table(path: Path, n: int, seed: int) -> None:
    """``rows`` as a CSV file: columns x0, x1, ..., and their class, c0, c1 or c2, as ``kind``."""
    x, y = rows(n, seed)
    head = [*(f"x{place}" for place in range(DIMENSIONS)), "kind"]
    lines = [[*map(str, row), f"c{label}"] for row, label in zip(x, y, strict=True)]
    path.write_text("\n".join(map(",".join, [head, *lines])) + "\n")


def write_tables(seed: int = 0, **counts: int) -> dict[str, str]:
    """Tables of so many rows in the working folder, by seeds from ``seed`` on: places by name."""
    for at, (name, count) in enumerate(counts.items(), seed):
        write_table(Path(f"{name}.csv"), count, at)
    return {name: f"{name}.csv" for name in counts}


def configure(folder: Path = Path(), **changed: Any) -> None:
    """config.yaml in ``folder``, with settings in place of CONFIG's; None leaves one out."""
    settings = yaml.safe_load(CONFIG) | changed
    settings = {name: value for name, value in settings.items() if value is not None}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))


def change(**arrays: Any) -> None:
    """Other arrays in the working folder's data.npz; None leaves one out."""
    with np.load("data.npz") as stored:
        arrays = {**stored, **arrays}
    np.savez("data.npz", **{name: rows for name, rows in arrays.items() if rows is not None})


def write(
    folder: Path = Path(), extra: tuple[np.ndarray, int, int] | None = None, **changed: Any
) -> None:
    """data.npz and config.yaml in ``folder``; ``extra``: (vector, label, id) of a private record
    put before all others; ``changed``: settings in place of CONFIG's."""
    folder.mkdir(parents=True, exist_ok=True)
    x, y = rows(200, 1)
    ids = np.arange(1000, 1200)
    if extra is not None:
        x, y, ids = np.vstack([extra[0], x]), np.append(extra[1], y), np.append(extra[2], ids)
    (public_x, public_y), (test_x, test_y) = rows(40, 2), rows(30, 3)
    np.savez(
        folder / "data.npz",
        private_x=x,
        private_y=y,
        private_id=ids,
        public_x=public_x,
        public_y=public_y,
        test_x=test_x,
        test_y=test_y,
    )
    configure(folder, **changed)
