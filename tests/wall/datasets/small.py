"""Small data sets of one's own: a builder of arrays and one of tables, for all their tests."""

from pathlib import Path
from typing import Any

import numpy as np

from labelwall.wall.datasets.config import DataConfig

SPLITS = ("private", "public", "test")
HEADER = "größe,weight,price_class"
PRIVATE = ["1,10,low", "2,20,high", "3,30,low"]
LINES = {
    "private": PRIVATE,
    "public": ["0,0,", "2,20,", "4,40,high"],
    "test": ["1,10,low", "3,10,high"],
}
TRUTH = {
    "class": np.arange(6) % 3,
    "attributes": np.random.default_rng(0).integers(0, 2, (6, 4)),
    "value": np.array([-3.0, 0.0, 1.25, 5.0, 10.0, 12.0]),
}


def write_arrays(path: Path, labels: Any = "class", **changed: np.ndarray | None) -> DataConfig:
    """Six vectors of 3 numbers in each split, in an npz file or else in a folder of npy files.

    ``changed``: other arrays by name; None leaves one out.
    """
    rng = np.random.default_rng(0)
    every: dict[str, np.ndarray | None] = {f"{s}_x": rng.normal(size=(6, 3)) for s in SPLITS}
    every |= {"private_y": TRUTH[labels], "test_y": TRUTH[labels]} | changed
    arrays = {name: array for name, array in every.items() if array is not None}
    if path.suffix == ".npz":
        np.savez(path, **arrays)  # type: ignore[arg-type]
    else:
        path.mkdir(exist_ok=True)
        for name, array in arrays.items():
            np.save(path / f"{name}.npy", array)
    bounds = [0.0, 10.0] if labels == "value" else []
    return DataConfig("arrays", labels=labels, bounds=bounds, path=str(path))


def write_lines(folder: Path, name: str, lines: list[str], header: str = HEADER) -> str:
    (folder / name).write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return str(folder / name)


def write_tables(folder: Path, **settings: Any) -> dict[str, Any]:
    """``DataConfig``'s arguments for a CSV file of each split."""
    files = {name: write_lines(folder, f"{name}.csv", lines) for name, lines in LINES.items()}
    return {"source": "table", "label": "price_class", **files, **settings}
