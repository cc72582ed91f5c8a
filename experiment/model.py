"""What a run leaves, in Python: its model, its report, its ledger's audit."""

import html
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..student.measures import MEANS, Measures, by_group, measures
from ..teacher.ledger.auditor.auditor import Finding
from ..wall.datasets import readers
from ..wall.errors import InvalidInput, MissingData, listed, require_known
from ..wall.files import ROWS
from ..wall.guarantee import protected
from ..wall.label_kinds import ValueLabels, format_errors
from ..wall.labels import code_of
from .data import LABELS, Data
from .display import ShowsFacts, table
from .frames import as_array, is_frame, read_frame, texts

if TYPE_CHECKING:
    from ..student.results import Estimate
    from .run.summary import Summary


class Report:
    """A finished run's report.html, which a notebook's cell shows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"Report({str(self.path)!r})"

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(), quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="700"></iframe>'


class Evaluation:
    """What ``Model.evaluate`` found: ``measures`` of all rows, and ``groups``, those of each group.

    A notebook shows it as a table; ``frame()`` gives it as a data frame of pandas.
    """

    COLUMNS = ("rows", "accuracy", *MEANS)

    def __init__(self, measures: Measures, groups: Mapping[str, Measures]) -> None:
        self.measures, self.groups = measures, dict(groups)

    def rows(self) -> list[dict[str, Any]]:
        """A row for all rows, one for each group, one for each class or attribute."""
        lines = [("all", self.measures), *self.groups.items()]
        found = [{"of": n} | {c: getattr(m, c) for c in self.COLUMNS} for n, m in lines]
        for name, one in self.measures.names.items():
            known = {c: getattr(one, c, None) for c in self.COLUMNS}
            found.append({"of": name} | known | {"rows": one.positives})
        return found

    def frame(self) -> Any:
        """The table as a data frame; needs pandas."""
        import pandas

        return pandas.DataFrame(self.rows()).set_index("of")

    def __repr__(self) -> str:
        shown = {c: getattr(self.measures, c) for c in self.COLUMNS}
        known = {c: round(v, 4) for c, v in shown.items() if v is not None}
        return f"Evaluation({', '.join(f'{name}={value}' for name, value in known.items())})"

    def _repr_html_(self) -> str:
        shown = [
            ["" if v is None else f"{v:.4g}" if isinstance(v, float) else v for v in row.values()]
            for row in self.rows()
        ]
        return table(shown, ("", *self.COLUMNS))


class Model(ShowsFacts):
    """A student, from the folder of a finished run or from its file. Using it costs no privacy.

    ``classes_``: the labels, in the order of ``predict_proba``'s columns: integers, floating
    numbers, truth values or texts, as ``fit`` was given them in memory; else int64 where all are
    whole numbers, bool where they are True and False, and texts; attributes' names. ``student``:
    the network with its preprocessing (``student.module``, a torch module) and all that its file
    says.
    """

    def __init__(self, path: str | Path) -> None:
        from ..student.student_model import load_student

        self.path, self.student = Path(path), load_student(path)
        known, names = self.path / LABELS, self.student.classes
        kind = known.read_text() if known.is_file() else ""
        truths = {name.lower() for name in names} == {"true", "false"}
        kind = kind or ("int" if all(name.isdecimal() for name in names) else "bool" * truths)
        self.classes_ = np.array(names)
        if kind == "bool" and self.student.info.labels.kind == "class":
            self.classes_ = np.array([name.lower() in ("1", "true") for name in names])
        elif kind in ("int", "float"):
            with suppress(ValueError):  # names of attributes
                self.classes_ = self.classes_.astype(kind)

    def facts(self) -> dict[str, object]:
        """What it is, how good, and what is promised."""
        info, right, missed, beside = self.student.info, None, None, None
        space = info.labels
        with suppress(MissingData):
            right, missed = self.summary.test_accuracy, self.summary.test_errors
            beside = self.summary.baselines
        labels = {"classes" if space.kind == "class" else "attributes": listed(space.names)}
        if isinstance(space, ValueLabels):
            labels = {"values": f"{space.low:g} to {space.high:g}"}
        known = {
            **labels,
            "test accuracy": None if right is None else f"{right:.2%}",
            "test errors": missed and format_errors(missed),
            "beside it": beside and beside.text(),
            "epsilon": self.epsilon_,
            "delta": f"{self.delta_:g}",
            "protected": protected(info.privacy.unit),
            "network": info.backbone,
            "path": self.path,
        }
        return {name: value for name, value in known.items() if value not in (None, "")}

    @property
    def epsilon_(self) -> float | None:
        """The certified epsilon: recomputed from the run folder's ledger, or, of a student's file
        alone, as the file says. None where nothing is certified.
        """
        ledger = self.path / "ledger.sqlite"
        return audit(ledger).epsilon if ledger.is_file() else self.student.info.privacy.epsilon

    @property
    def delta_(self) -> float:
        """The probability that is added to epsilon's bound."""
        return self.student.info.privacy.delta

    @property
    def estimate_(self) -> "Estimate | None":
        """How many of the round's released labels are right, from released values alone; None where
        these do not tell.
        """
        return self.summary.kept.estimate

    @property
    def summary(self) -> "Summary":
        """What summary.json of the run holds. Raises MissingData for a file without its folder."""
        from ..student.results import read
        from .run.summary import Summary

        place = self.path / "summary.json"
        if not place.is_file():
            raise MissingData(f"`path` must be the folder of a run. Found {str(self.path)!r}.")
        return read(Summary, place)

    def update(self, private: Any = None, *, person: Any = None, quiet: bool = False) -> "Model":
        """Ask about the private rows as they are now, by the next period of the run's plan.

        ``private``: all of them, where ``fit`` was given rows in memory, as those of ``Data``, and
        ``person``; files and folders are read again. A killed call continues. Returns the new
        model. Raises as ``fit``, and BudgetRefused where no period is left.
        """
        from ..wall.console import Console
        from ..wall.datasets.sources import describe
        from .config.settings import load_config
        from .whole_run import owner_alone, update

        with owner_alone():
            if private is not None:
                config = load_config(self.path / "config.yaml")
                label, names = config.data.label, describe(config.data).labels.names
                place = Path(config.custodian_dir or "") / ROWS
                Data(private, label=label, classes=names, person=person).replace_private(place)
            update(self.path, Console(quiet=quiet))
        return Model(self.path)

    @property
    def report_(self) -> Report:
        """The report, which a notebook shows."""
        return Report(self.path / "report.html")

    def predict(self, rows: Any, shares: Any = None) -> np.ndarray:
        """The label of each row, one of ``classes_`` [n]; int64 [n, c] of 0 and 1 for attributes;
        float64 [n] for values. ``rows``: as those of ``Data``, or paths of images. ``shares``: of
        the classes among these rows, one of each, or "estimate".
        """
        predicted = self.student.predict(self.inputs(rows), shares)
        return self.classes_[predicted] if self.student.info.labels.kind == "class" else predicted

    def predict_proba(self, rows: Any) -> np.ndarray:
        """Probabilities float64 [n, c] of ``classes_``."""
        return self.student.probabilities(self.inputs(rows))

    def score(self, rows: Any, labels: Any) -> float:
        """The share of right labels; for values R^2. Raises InvalidInput for a label of no class,
        and another number of labels than of rows.
        """
        predicted = self.student.predict(self.inputs(rows))
        truth = self.truth(labels, predicted.shape)
        if self.student.info.labels.kind == "value":
            return float(1 - ((truth - predicted) ** 2).sum() / ((truth - truth.mean()) ** 2).sum())
        return float((predicted == truth).mean())

    def evaluate(
        self, rows: Any, labels: Any, *, groups: Any = None, specificity: float = 0.9
    ) -> "Evaluation":
        """The measures of medicine and of imbalance: AUROC, average precision, sensitivity at a
        ``specificity``, balanced accuracy, Brier score, calibration; by class or attribute, too.

        ``labels``: of ``rows``, as for ``score``. ``groups``: a name for each row (an age band, a
        scanner), or the name of a column of ``rows``; the measures are then told by group as well.
        Raises InvalidInput as ``score``, and for a model of values.
        """
        space = self.student.info.labels
        if space.kind == "value":
            raise InvalidInput("model", "one of classes or attributes", "values: use score")
        if not 0 < specificity < 1:
            raise InvalidInput("specificity", "above 0 and below 1", specificity)
        if isinstance(groups, str):
            frame = read_frame("rows", rows, [groups])
            require_known("groups", [groups], frame, "a column of rows")
            groups = as_array(frame[groups])
        chances = self.student.probabilities(self.inputs(rows))
        shape = chances.shape if space.kind == "attributes" else chances.shape[:1]
        truth = self.truth(labels, shape)
        if groups is not None and len(groups) != len(chances):
            raise InvalidInput("groups", f"{len(chances)} names, one for each row", len(groups))
        found = measures(space, chances, truth, specificity)
        if found is None:
            raise InvalidInput("rows", "at least one, of at most 1,000 classes", len(chances))
        of = {} if groups is None else by_group(space, chances, truth, groups, specificity)
        return Evaluation(found, of)

    def truth(self, labels: Any, shape: tuple[int, ...]) -> np.ndarray:
        """Labels as codes of the classes, or as they are. Raises InvalidInput."""
        truth = np.asarray(as_array(labels))
        if shape != truth.shape:
            raise InvalidInput("labels", f"of the shape {shape}", truth.shape)
        if self.student.info.labels.kind != "class":
            return truth
        code = code_of(self.student.classes)
        cells = texts(truth)
        if unknown := [text for text in cells if code(text) < 0]:
            rule = f"labels of {listed(self.student.classes)}"
            raise InvalidInput("labels", rule, unknown[0])
        return np.array([*map(code, cells)])

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a Hugging Face folder: the student, its model card and its configuration."""
        from .use.export import export

        export(self.student, self.path, "huggingface", Path(folder), "uint8")

    def inputs(self, rows: Any) -> Any:
        """Rows as the student takes them."""
        info = self.student.info
        if info.table is not None and is_frame(rows):
            plain = [c.name for c in info.table.columns if c.kind != "number"]
            columns = read_frame("rows", rows, plain)
            for line in info.table.unlike(columns):
                warnings.warn(f"rows, {line}", stacklevel=3)
            return info.table.entries("rows", columns)
        if isinstance(rows, str | Path) and Path(rows).is_dir() and not info.table:
            from .use.classify import image_paths

            return image_paths([Path(rows)])
        if isinstance(rows, str | Path | np.ndarray):
            return rows
        first = rows[0] if isinstance(rows, list) and rows else None
        if hasattr(first, "convert"):  # images of Pillow
            self.student.read([])  # raises but for a student of images
            height, width, channels = info.input_shape
            size = height, width
            return np.stack(
                [readers.pixels_of(row.copy(), size, channels, info.white) for row in rows]
            )
        if isinstance(first, str | Path):
            return rows
        try:
            return np.asarray(as_array(rows))
        except (TypeError, ValueError):
            rule = "an array, a tensor, a data frame, or lists of numbers of one length"
            raise InvalidInput("rows", rule, type(rows).__name__) from None


def load(path: str | Path) -> Model:
    """The model of a finished run's folder, or of a student.safetensors.

    Raises MissingData, InvalidInput.
    """
    return Model(path)


def audit(ledger: str | Path, expect_head: str | None = None) -> Finding:
    """Recompute the certificate from a ledger file alone: ``epsilon``, ``problems``, ``render()``.

    ``ledger``: the file, or the folder of a run. ``expect_head``: a hash (hex) that must stand in
    the chain. Raises MissingData.
    """
    from ..teacher.ledger.auditor import auditor

    place = Path(ledger)
    file = place / "ledger.sqlite" if place.is_dir() else place
    return auditor.audit(file, expect_head=expect_head)
