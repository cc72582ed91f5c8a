"""labelwall in Python: private rows in, a differentially private model out.

    >>> import labelwall as lw
    >>> data = lw.Data(private=(X, y), public=U, test=(Xt, yt))
    >>> lw.plan(data, epsilon=1.0)  # the price; reads nothing private
    >>> model = lw.fit(data, epsilon=1.0, custody="custody", run_dir="runs/a")
    >>> model.predict(Xt)

`labelwall run` calls ``train``, as ``fit`` does: both charge, ask and resume in the same way.
"""

import html
import json
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..teacher.ledger.auditor.auditor import Finding
from ..teacher.private_files import make_private
from ..wall.errors import InvalidInput, LabelwallError, MissingData, reason_of
from .config.config import Config
from .config.own import COLUMNS, OWN, own_settings
from .config.settings import config_of, merged
from .data import Data, is_frame, write_table
from .run.console import Console

Settings = Mapping[str, Any]
ROWS = "rows"  # the folder of a custodian's directory with rows that were given in memory


def train(config: Config, run_dir: Path, console: Console, isolate: bool = False) -> dict[str, Any]:
    """Run, or resume, an experiment, and write its report: what summary.json holds.

    The method is chosen first where the configuration leaves it open, then the price is said, then
    private rows are asked about. Raises BudgetRefused, LedgerMismatch, InvalidInput, MissingData.
    """
    from ..teacher.noise.entropy import SystemEntropy
    from .plan.show import announce
    from .report.report import write_report
    from .run import entry
    from .run.places import custodian_place, require_budget, tell_changed_files
    from .run.run_folder import RunFolder

    side, apart = config.private_side(), isolate or config.teacher is not None
    custodian = custodian_place(side, run_dir)
    if not apart:  # then another process alone looks into the directory
        require_budget(side, custodian, console.say)
    if config.open:
        from .plan.search import decided  # takes a second

        config = decided(config, RunFolder(run_dir), custodian, console)
    announce(config.private_side(), entry.resumed(config, RunFolder(run_dir)), console)
    summary = entry.run(
        config,
        run_dir,
        entropy=SystemEntropy(),
        console=console,
        isolate=isolate,
        custodian=custodian,
    )
    if not apart:
        tell_changed_files(config.data, custodian, console.say)
    write_report(run_dir)
    return summary


@contextmanager
def _owner_alone() -> Iterator[None]:
    """Files that are written meanwhile are their owner's alone; OSError is a LabelwallError."""
    before = os.umask(0o077)
    try:
        yield
    except OSError as error:
        raise LabelwallError(reason_of(error)) from error
    finally:
        os.umask(before)


def _configured(options: Settings, settings: Settings, budget: Settings) -> Config:
    own = {**options, **{name: value for name, value in budget.items() if value is not None}}
    data = settings.get("data", {})
    columns = {name: data[name] for name in COLUMNS if name in data}
    return config_of(merged(own_settings(own, columns), settings))


def fit(
    data: Data,
    epsilon: float = 1.0,
    *,
    run_dir: str | Path,
    custody: str | Path | None = None,
    delta: float | None = None,
    expected_records: int | None = None,
    isolate: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> "Model":
    """Train a model that is differentially private with respect to ``data.private``.

    The same arguments resume a killed call, and return the finished model at no charge.

    Args:
        data: private, public and test rows.
        epsilon: what one record can change: whatever is released is at most e^epsilon times as
            likely with it as without it.
        run_dir: folder for the results; public.
        custody: the custodian's directory, PRIVATE: the ledger of these records, and those of them
            that are given in memory; needed for these. Beside the private rows by default. One
            directory is one budget; the epsilons of two over the same records add up.
        delta: probability added to that bound; by default 1e-5, less for many public rows.
        expected_records: a PUBLIC guess of the number of private records.
        isolate: the teacher in a process of its own; this one opens no private file.
        quiet: print nothing.
        settings: settings by name, those of a group as a dict: ``student={"steps": 900}``
            (`labelwall run --help-all`).

    Raises LabelwallError with one line, as the command line does: InvalidInput, MissingData,
    BudgetRefused, LedgerMismatch (another plan for the same directory).
    """
    run_dir, classes = Path(run_dir), data.names()
    with _owner_alone():
        if data.in_memory:
            if custody is None:
                raise InvalidInput("custody", "the custodian's directory, for rows in memory", None)
            place = Path(custody) / ROWS
            make_private(Path(custody))
            make_private(place)
        options = data.options(place if data.in_memory else run_dir)
        if custody is not None:
            settings = {"custodian_dir": str(Path(custody).absolute()), **settings}
        budget = {"epsilon": epsilon, "delta": delta, "expected_records": expected_records}
        if classes:
            settings = merged({"data": {"classes": classes}}, settings)
        train(_configured(options, settings, budget), run_dir, Console(quiet=quiet), isolate)
    return load(run_dir)


@dataclass(frozen=True)
class Price:
    """What a run costs, from public facts alone; shows itself as a table.

    ``fields``: as `labelwall plan --json` prints them.
    """

    epsilon: float
    delta: float
    fields: dict[str, Any] = field(repr=False)
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text)}</pre>"


def plan(
    data: Data,
    epsilon: float = 1.0,
    *,
    delta: float | None = None,
    expected_records: int | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Price:
    """The price of ``fit`` with these arguments, and a forecast where the method is rehearsed.

    Opens no private row, and costs no privacy: ask as often as you like. Arguments as for ``fit``.
    Raises BudgetRefused where the settings cost more than ``epsilon``.
    """
    from ..teacher.accounting.accountant import require_affordable
    from .plan.search import best_plan
    from .plan.show import describe_optimum, describe_plan, reason, render_plan

    with TemporaryDirectory() as scratch:
        options = data.options(Path(scratch), private=False)
        if names := data.names():
            settings = merged({"data": {"classes": names}}, settings)
        budget = {"epsilon": epsilon, "delta": delta, "expected_records": expected_records}
        config, lines = _configured(options, settings, budget), []
        if config.open:
            config, optimum = best_plan(config, Console(quiet=quiet))
            shown, lines = describe_optimum(config, optimum), ["", reason(optimum)]
        else:
            shown = describe_plan(config)
        require_affordable(config.plan())
        text = "\n".join([render_plan(shown), *lines])
    return Price(float(str(shown["epsilon"])), config.budget.delta, shown, text)


@dataclass(frozen=True)
class Comparison:
    """Methods beside one another; shows itself as a table.

    ``rows``: a dict for each line, as comparison.json has them; ``path``: the folder, PRIVATE.
    """

    path: Path
    rows: list[dict[str, Any]] = field(repr=False)

    def __str__(self) -> str:
        from .compare.table import render

        return render(self.rows)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def compare(
    data: Data,
    methods: Sequence[str] | None = None,
    epsilon: float | Sequence[float] = 1.0,
    *,
    out: str | Path,
    seeds: Sequence[int] = (0,),
    delta: float | None = None,
    expected_records: int | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Comparison:
    """Several methods on the same rows, as `labelwall compare` runs them.

    Each cell is a release of its own, and the comparison spends their sum: ``out``, the folder of
    results, is PRIVATE, and so are rows in memory, which are written to OUT.custodian.

    Args:
        methods: kinds of mechanisms, "auto", and baselines such as "linear_noisy_sgd"; a few of
            each kind by default.
        epsilon: one budget, or several.
        seeds: of the repetitions.
        Others: as of ``fit``.
    """
    from ..teacher.noise.entropy import SystemEntropy
    from .compare import compare as comparison
    from .compare.own import own_cells

    out = Path(out)
    with _owner_alone():
        place = Path(f"{out}.custodian")
        if data.in_memory:
            make_private(place)
            make_private(place / ROWS)
        options = data.options(place / ROWS)
        budgets = [epsilon] if isinstance(epsilon, float | int) else list(epsilon)
        more = {"delta": delta, "expected_records": expected_records, "epsilon": budgets}
        words = {"config": [], "methods": methods, "seeds": list(seeds)}
        given = Namespace(**dict.fromkeys(OWN), **words)
        vars(given).update(options | more)
        if names := data.names():
            settings = merged({"data": {"classes": names}}, settings)
        cells = own_cells(given, {}, settings)
        console = Console(quiet=quiet)
        rows = comparison.compare(cells, out, entropy=SystemEntropy(), console=console)
    return Comparison(out, rows)


class Report:
    """A finished run's report.html, which a notebook's cell shows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"Report({str(self.path)!r})"

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(), quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="700"></iframe>'


class Model:
    """A student, from the folder of a finished run or from its file. Using it costs no privacy.

    ``classes_``: the labels, in the order of ``predict_proba``'s columns: int64 where they are the
    numbers from 0 on, else texts; attributes' names. ``student``: the network with its
    preprocessing (``student.module``, a torch module) and all that its file says.
    """

    def __init__(self, path: str | Path) -> None:
        from ..student.model import load as load_student

        self.path, self.student = Path(path), load_student(path)
        names = self.student.classes
        numbered = list(names) == [str(number) for number in range(len(names))]
        self.classes_ = np.arange(len(names)) if numbered else np.array(names)

    def __repr__(self) -> str:
        return f"Model({self.student.info.backbone}, epsilon={self.epsilon_})"

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
    def estimate_(self) -> dict[str, Any] | None:
        """How many of the round's released labels are right, from released values alone; None where
        these do not tell.
        """
        estimate: dict[str, Any] | None = self.summary["rounds"][self.summary["best_round"] - 1][
            "estimate"
        ]
        return estimate

    @property
    def summary(self) -> dict[str, Any]:
        """What summary.json of the run holds. Raises MissingData for a file without its folder."""
        place = self.path / "summary.json"
        if not place.is_file():
            raise MissingData(f"`path` must be the folder of a run. Found {str(self.path)!r}.")
        summary: dict[str, Any] = json.loads(place.read_text())
        return summary

    @property
    def report_(self) -> Report:
        """The report, which a notebook shows."""
        return Report(self.path / "report.html")

    def predict(self, rows: Any, shares: Any = None) -> np.ndarray:
        """The label of each row, one of ``classes_`` [n]; int64 [n, c] of 0 and 1 for attributes;
        float64 [n] for values. ``rows``: as those of ``Data``, or paths of images. ``shares``: of
        the classes among these rows, one of each, or "estimate".
        """
        predicted = self.student.predict(self._inputs(rows), shares)
        return self.classes_[predicted] if self.student.info.labels.kind == "class" else predicted

    def predict_proba(self, rows: Any) -> np.ndarray:
        """Probabilities float64 [n, c] of ``classes_``."""
        return self.student.probabilities(self._inputs(rows))

    def score(self, rows: Any, labels: Any) -> float:
        """The share of right labels; for values R^2."""
        predicted, truth = self.predict(rows), np.asarray(labels)
        if self.student.info.labels.kind == "value":
            return float(1 - ((truth - predicted) ** 2).sum() / ((truth - truth.mean()) ** 2).sum())
        if self.classes_.dtype.kind == "U":
            truth = truth.astype(str)
        return float((predicted == truth).mean())

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a Hugging Face folder: the student, its model card and its configuration."""
        from .use.export import export

        export(self.student, self.path, "huggingface", Path(folder), "uint8")

    def _inputs(self, rows: Any) -> Any:
        if not is_frame(rows) or self.student.info.table is None:
            return rows if isinstance(rows, str | Path | np.ndarray | list) else np.asarray(rows)
        with TemporaryDirectory() as scratch:
            path = Path(scratch) / "rows.parquet"
            write_table("rows", rows, "label", path)
            return self.student.rows(path)


def load(path: str | Path) -> Model:
    """The model of a finished run's folder, or of a student.safetensors.

    Raises MissingData, InvalidInput.
    """
    return Model(path)


def audit(ledger: str | Path, expect_head: str | None = None) -> Finding:
    """Recompute the certificate from a ledger file alone: ``epsilon``, ``problems``, ``render()``.

    ``expect_head``: a hash (hex) that must stand in the chain. Raises MissingData.
    """
    from ..teacher.ledger.auditor import auditor

    return auditor.audit(Path(ledger), expect_head=expect_head)
