"""Tables of one's own: columns of numbers and a column with the label, in files for each split, or
in one file with a column that names the split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ..errors import InvalidInput
from ..labels.base import LabelSpace
from ..labels.registry import label_space
from ..progress import TaskProgress
from .base import DataSet, Labels, PublicRows, Settings
from .tables import TableFile, numbers, read_table, texts

ID = "record_id"  # a column with ids of private records, where there is one
CONSTANT = 1e-9  # a relative deviation that is rounding alone
Split = Literal["public", "test"]


class Table(DataSet):
    """Every column of the public file but the label, the split, ``record_id`` and those to ignore
    is a feature, centred and scaled by the PUBLIC rows' mean and deviation.

    Names of classes are the texts in the test file's label column, sorted, if not declared.
    """

    name = "table"
    kinds: tuple[Labels, ...] = ("class", "value")
    takes_names = True
    persons = "setting"

    def label_space(self, config: Settings) -> LabelSpace:
        space = config.declared_labels
        if space.names:
            return space
        found = sorted(set(texts(_column(config, "test", config.label))) - {""}, key=_natural)
        if len(found) < 2:
            rule = "a column with at least 2 classes in the test rows"
            raise InvalidInput("data.label", rule, f"{config.label}: {', '.join(found)}")
        return label_space(config.labels, found)

    def input_shape(self, config: Settings) -> tuple[int, ...]:
        return (len(scaling(config).mean),)

    def read_public(self, config: Settings, progress: TaskProgress | None) -> PublicRows:
        space = self.label_space(config)
        scale = scaling(config)
        public, test = split_rows(config, "public"), split_rows(config, "test")
        labels = _public_labels(config, space, public) if config.label in public.columns else None
        test_labels = _labels(config, space, test, "test")
        return _finite(scale, public, "public"), labels, _finite(scale, test, "test"), test_labels


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
        numbers = {"mean": self.mean.tolist(), "deviation": self.deviation.tolist()}
        return {"features": list(self.features), "widths": list(self.widths), **numbers}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Scaling:
        """Inverse of ``to_json``. Raises KeyError, TypeError, ValueError for anything else."""
        arrays = (np.array(found[name], dtype=np.float64) for name in ("mean", "deviation"))
        return cls(tuple(map(str, found["features"])), tuple(map(int, found["widths"])), *arrays)

    def inputs(self, name: str, table: TableFile) -> np.ndarray:
        """float32 [n, d]; NaN where a cell is no number. Raises InvalidInput for other columns."""
        missing = [feature for feature in self.features if feature not in table.columns]
        if missing:
            raise InvalidInput(name, f"a table with the column {missing[0]}", "none")
        widths = zip(self.features, self.widths, strict=True)
        values = [numbers(table.columns[feature], width) for feature, width in widths]
        with np.errstate(all="ignore"):
            rows = (np.concatenate(values, axis=1) - self.mean) / self.deviation
            return rows.astype(np.float32)


def scaling(config: Settings) -> Scaling:
    """The features, by the PUBLIC table alone. Raises InvalidInput for a cell that is no number."""
    table = split_rows(config, "public")
    left_out = {config.label, config.split, config.person, ID, *config.ignore}
    features = tuple(name for name in table.columns if name not in left_out)
    if not features or not table.rows:
        raise InvalidInput("data.public", "a table with rows and columns of numbers", "none")
    values = [numbers(table.columns[name]) for name in features]
    _require_finite("data.public", table, dict(zip(features, values, strict=True)))
    rows = np.concatenate(values, axis=1)
    mean, deviation = rows.mean(axis=0), rows.std(axis=0)
    deviation = np.where(deviation > CONSTANT * (1 + np.abs(mean)), deviation, 1.0)
    return Scaling(features, tuple(v.shape[1] for v in values), mean, deviation)


def split_rows(config: Settings, split: Split) -> TableFile:
    """The rows of a PUBLIC split: its own file, or those of the one file that name it."""
    if config.split:
        return one_file(config.path, config.split, split)
    return read_table(f"data.{split}", config.public if split == "public" else config.test)


def one_file(path: str | None, column: str, split: str) -> TableFile:
    """The rows of the one file whose ``column`` says ``split``.

    Raises InvalidInput, MissingData.
    """
    table = read_table("data.path", path)
    if column not in table.columns:
        raise InvalidInput("data.split", _one_of(table), column)
    return table.where(column, split)


def encode(config: Settings, space: LabelSpace, name: str, table: TableFile) -> np.ndarray:
    """Codes of a table's labels: int64 [n], -1 for a cell that is no label.

    Raises InvalidInput where the column is missing.
    """
    if config.label not in table.columns:
        raise InvalidInput("data.label", f"{_one_of(table)}, columns of {name}", config.label)
    cells = table.columns[config.label]
    if space.kind == "value":
        return space.encode(name, numbers(cells)[:, 0])
    codes = {text: code for code, text in enumerate(space.names)}
    return np.array([codes.get(text, -1) for text in texts(cells)], dtype=np.int64)


def _public_labels(config: Settings, space: LabelSpace, table: TableFile) -> np.ndarray | None:
    """Labels of public rows; None where a row has none, since they serve reported metrics alone."""
    codes = encode(config, space, "data.public", table)
    return _truth(config, table, codes) if (codes >= 0).all() else None


def _labels(config: Settings, space: LabelSpace, table: TableFile, split: Split) -> np.ndarray:
    codes = encode(config, space, f"data.{split}", table)
    if not len(codes) or (codes < 0).any():
        found = texts(table.columns[config.label])[codes < 0][:1]
        rule = f"rows with a known label in the column {config.label}"
        raise InvalidInput(f"data.{split}", rule, f"{found[0]}" if len(found) else "no rows")
    return _truth(config, table, codes)


def _truth(config: Settings, table: TableFile, codes: np.ndarray) -> np.ndarray:
    return numbers(table.columns[config.label])[:, 0] if config.labels == "value" else codes


def _column(config: Settings, split: Split, name: str) -> np.ndarray:
    table = split_rows(config, split)
    if name not in table.columns:
        raise InvalidInput("data.label", f"{_one_of(table)}, columns of data.{split}", name)
    return table.columns[name]


def _finite(scale: Scaling, table: TableFile, split: Split) -> np.ndarray:
    rows = scale.inputs(f"data.{split}", table)
    if not np.isfinite(rows).all():
        widths = zip(scale.features, scale.widths, strict=True)
        columns = {name: numbers(table.columns[name], width) for name, width in widths}
        _require_finite(f"data.{split}", table, columns)
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
    texts = [name for name in bad if not finite[name].any()]
    name = (texts or bad)[0]
    row = int(np.argmin(finite[name]))
    cell = str(table.columns[name][row])[:40]
    ignored = f"--data.ignore '[{', '.join(texts or [name])}]'"
    cure = f"Use {ignored}." if texts else f"Take the row out, or the column by {ignored}."
    raise InvalidInput(field, "numbers", f"{cell!r} in row {row + 1}, column {name}", cure)


def _one_of(table: TableFile) -> str:
    return f"one of {', '.join(list(table.columns)[:12])}"


def _natural(text: str) -> tuple[bool, float, str]:
    """Numbers by value, before other texts."""
    value = numbers(np.array([text], dtype=object))[0, 0]
    return (True, 0.0, text) if np.isnan(value) else (False, float(value), text)
