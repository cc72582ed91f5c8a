"""Tables of one's own: columns of numbers and a column with the label, in files for each split, or
in one file with a column that names the split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import InvalidInput
from ..labels.base import LabelSpace
from ..labels.registry import label_space
from ..progress import TaskProgress
from .config import DataConfig, PublicData, Task
from .tables import TableFile, numbers, read_table, texts

ID = "record_id"  # a column with ids of private records, where there is one
SPLITS = ("private", "public", "test")
CONSTANT = 1e-9  # a relative deviation that is rounding alone


@dataclass(frozen=True)
class Scaling:
    """The features by name, and the PUBLIC rows' mean and deviation, float64 [d].

    A feature may have several numbers, where cells are vectors.
    """

    features: tuple[str, ...]
    widths: tuple[int, ...]
    mean: np.ndarray = field(repr=False)
    deviation: np.ndarray = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """What a student's file holds of it."""
        statistics = {"mean": self.mean.tolist(), "deviation": self.deviation.tolist()}
        return {"features": list(self.features), "widths": list(self.widths), **statistics}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Scaling:
        """Inverse of ``to_json``. Raises KeyError, TypeError, ValueError for anything else."""
        arrays = (np.array(fields[name], dtype=np.float64) for name in ("mean", "deviation"))
        return cls(tuple(map(str, fields["features"])), tuple(map(int, fields["widths"])), *arrays)

    def columns(self, name: str, table: TableFile) -> dict[str, np.ndarray]:
        """float64 [n, width] by feature; NaN where a cell is no number."""
        missing = [feature for feature in self.features if feature not in table.columns]
        if missing:
            raise InvalidInput(name, f"a table with the column {missing[0]}", "none")
        widths = zip(self.features, self.widths, strict=True)
        return {feature: numbers(table.columns[feature], width) for feature, width in widths}

    def inputs(self, name: str, table: TableFile) -> np.ndarray:
        """float32 [n, d]; NaN where a cell is no number. Raises InvalidInput for other columns."""
        values = list(self.columns(name, table).values())
        with np.errstate(all="ignore"):
            rows = (np.concatenate(values, axis=1) - self.mean) / self.deviation
            return rows.astype(np.float32)


def describe(config: DataConfig) -> Task:
    """The task. Names of classes are the texts in the test file's label column, sorted, if not
    declared.
    """
    space, test = config.declared_labels, split_rows(config, "test")
    if not space.names:
        classes = sorted(set(texts(_label_column(config, "data.test", test))) - {""}, key=_natural)
        if len(classes) < 2:
            rule = "a column with at least 2 classes in the test rows"
            raise InvalidInput("data.label", rule, f"{config.label}: {', '.join(classes)}")
        space = label_space(config.labels, classes)
    return Task(space, (len(scaling(config).mean),))


def read_public(config: DataConfig, progress: TaskProgress | None) -> PublicData:
    """The PUBLIC rows. Raises InvalidInput, MissingData."""
    space, scale = describe(config).labels, scaling(config)
    public, test = split_rows(config, "public"), split_rows(config, "test")
    labels = None
    if config.label in public.columns:
        codes = encode(config, space, "data.public", public)
        # None where a row has none, since they serve reported metrics alone
        labels = _truth(config, public, codes) if (codes >= 0).all() else None
    codes = encode(config, space, "data.test", test)
    if not len(codes) or (codes < 0).any():
        unknown = texts(test.columns[config.label])[codes < 0][:1]
        rule = f"rows with a known label in the column {config.label}"
        raise InvalidInput("data.test", rule, f"{unknown[0]}" if len(unknown) else "no rows")
    inputs, test_inputs = (
        _finite(scale, table, name) for table, name in ((public, "public"), (test, "test"))
    )
    return PublicData(inputs, labels, test_inputs, _truth(config, test, codes))


def scaling(config: DataConfig) -> Scaling:
    """The features, by the PUBLIC table alone: every column but the label, the split, the person,
    ``record_id`` and those to ignore.

    Raises InvalidInput for a cell that is no number.
    """
    table = split_rows(config, "public")
    left_out = {config.label, config.split, config.person, ID, *config.ignore}
    features = tuple(name for name in table.columns if name not in left_out)
    if not features or not table.rows:
        raise InvalidInput("data.public", "a table with rows and columns of numbers", "none")
    values = {name: numbers(table.columns[name], None) for name in features}
    _require_finite("data.public", table, values)
    rows = np.concatenate(list(values.values()), axis=1)
    mean, deviation = rows.mean(axis=0), rows.std(axis=0)
    deviation = np.where(deviation > CONSTANT * (1 + np.abs(mean)), deviation, 1.0)
    return Scaling(features, tuple(v.shape[1] for v in values.values()), mean, deviation)


def split_rows(config: DataConfig, split: str) -> TableFile:
    """The rows of a PUBLIC split: its own file, or those of the one file that name it."""
    if config.split:
        return one_file(config.path, config.split, split)
    return read_table(f"data.{split}", config.public if split == "public" else config.test)


def one_file(path: str | None, column: str, split: str) -> TableFile:
    """The rows of the one file whose ``column`` says ``split``, in any case and with blanks around.

    What the column says is public. Raises InvalidInput, also for any other word, MissingData.
    """
    table = read_table("data.path", path)
    if column not in table.columns:
        raise InvalidInput("data.split", _one_of(table), column)
    words = np.array([text.lower() for text in texts(table.columns[column])], dtype=object)
    if not set(words) <= set(SPLITS):
        rule = f"a column that says {', '.join(SPLITS[:-1])} or {SPLITS[-1]} in every row"
        raise InvalidInput("data.split", rule, f"another word in the column {column}")
    return table.take(words == split)


def encode(config: DataConfig, space: LabelSpace, name: str, table: TableFile) -> np.ndarray:
    """Codes of a table's labels: int64 [n], -1 for a cell that is no label.

    Raises InvalidInput where the column is missing.
    """
    cells = _label_column(config, name, table)
    if space.kind == "value":
        return space.encode(name, numbers(cells, 1)[:, 0])
    codes = {text: code for code, text in enumerate(space.names)}
    return np.array([codes.get(text, -1) for text in texts(cells)], dtype=np.int64)


def _label_column(config: DataConfig, name: str, table: TableFile) -> np.ndarray:
    if config.label not in table.columns:
        raise InvalidInput("data.label", f"{_one_of(table)}, columns of {name}", config.label)
    return table.columns[config.label]


def _truth(config: DataConfig, table: TableFile, codes: np.ndarray) -> np.ndarray:
    return numbers(table.columns[config.label], 1)[:, 0] if config.labels == "value" else codes


def _finite(scale: Scaling, table: TableFile, split: str) -> np.ndarray:
    rows = scale.inputs(f"data.{split}", table)
    if not np.isfinite(rows).all():
        _require_finite(f"data.{split}", table, scale.columns(f"data.{split}", table))
    return rows


def _require_finite(field: str, table: TableFile, columns: Mapping[str, np.ndarray]) -> None:
    """Raises InvalidInput for the first cell of PUBLIC columns that is no finite number.

    ``columns``: float64 [n, width] by name. Where a column has no number at all, the error names
    every such column.
    """
    finite = {name: np.isfinite(column).all(axis=1) for name, column in columns.items()}
    bad = [name for name, good in finite.items() if not good.all()]
    if not bad:
        return
    words = [name for name in bad if not finite[name].any()]
    name = (words or bad)[0]
    row = int(np.argmin(finite[name]))
    cell = texts(table.columns[name][row : row + 1])[0][:40]
    ignored = f"--data.ignore '[{', '.join(words or [name])}]'"
    cure = f"Use {ignored}." if words else f"Take the row out, or the column by {ignored}."
    raise InvalidInput(field, "numbers", f"{cell!r} in row {row + 1}, column {name}", cure)


def _one_of(table: TableFile) -> str:
    return f"one of {', '.join(list(table.columns)[:12])}"


def _natural(text: str) -> tuple[bool, float, str]:
    """Numbers by value, before other texts."""
    value = numbers(np.array([text], dtype=object), 1)[0, 0]
    return (True, 0.0, text) if np.isnan(value) else (False, float(value), text)
