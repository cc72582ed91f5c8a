"""Small data sets of one's own: a builder of arrays and one of tables, for all their tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from labelwall.wall.datasets.data_config import DataConfig

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


def cells(*values: object) -> np.ndarray:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


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


def write_splits(
    folder: Path, lines: list[str] | dict[str, list[str]], header: str = HEADER, form: str = "csv"
) -> dict[str, str]:
    """The paths of files, one a split: of the same ``lines``, or of those that a split has."""
    own = lines if isinstance(lines, dict) else dict.fromkeys(SPLITS, lines)
    return {name: write_lines(folder, f"{name}.{form}", own[name], header) for name in own}


def write_tables(folder: Path, **settings: Any) -> dict[str, Any]:
    """``DataConfig``'s arguments for a CSV file of each split."""
    return {"source": "table", "label": "price_class", **write_splits(folder, LINES), **settings}


CAT = "a quiet cat sleeps on our warm sofa and purrs softly all day long"
DOG = "the loud dog runs in the wide garden and barks at every car outside"
WORDS = {"cat": CAT.split(), "dog": DOG.split()}


def text_of(kind: str, number: int) -> str:
    """A text about a cat or a dog, another one for each number."""
    words = np.random.default_rng([number, len(kind), ord(kind[0])]).choice(WORDS[kind], 9)
    return f"{' '.join(words)} number{number}"


PUBLIC_TEXTS = tuple(text_of(kind, number) for number in range(20) for kind in ("cat", "dog"))


def write_text_folders(
    place: Path, private: int = 5, public: Sequence[str] = PUBLIC_TEXTS
) -> dict[str, str]:
    """Class folders of txt files for private and test, a folder of them for public texts."""
    for name, start, count in (("private", 100, private), ("test", 500, 6)):
        for kind in WORDS:
            (place / name / kind).mkdir(parents=True)
            for number in range(count):
                text = text_of(kind, start + number)
                (place / name / kind / f"{number}.txt").write_text(text)
    (place / "public").mkdir()
    for number, text in enumerate(public):
        (place / "public" / f"{number}.txt").write_text(text)
    return {name: str(place / name) for name in SPLITS}
