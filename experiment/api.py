"""labelwall in Python: private rows in, a differentially private model out.

    >>> import labelwall as lw
    >>> data = lw.Data(private=(X, y), public=U, test=(Xt, yt))
    >>> lw.plan(data, epsilon=1.0)  # the price; reads nothing private
    Price(epsilon=1.0, delta=1e-05)
    >>> model = lw.fit(data, epsilon=1.0, custody="custody", run_dir="runs/a")
    >>> model.predict(Xt)
    array([1, 0, 2, ...])

`labelwall run` calls ``train``, as ``fit`` does: both charge, ask and resume in the same way.
"""

import html
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..teacher.accounting.conversion import round_up
from ..teacher.accounting.plan import Plan
from ..teacher.custody.solver import solved
from ..teacher.mechanisms.registry import AUTO
from ..wall.console import Console
from ..wall.errors import InvalidInput, MissingData
from ..wall.files import ROWS, write_file
from .config.config import Config
from .config.options import refined
from .config.own import OWN, large, own_settings
from .config.settings import config_of
from .data import LABELS, Data
from .display import table
from .model import Model, load
from .run.door import within
from .run.run_folder import RunFolder
from .whole_run import owner_alone, train

Settings = Mapping[str, Any]


def _configured(
    data: Data,
    place: Path,
    settings: Settings,
    private: bool,
    folder: RunFolder | None,
    console: Console,
    **budget: Any,
) -> Config:
    """``folder``, ``console``: as of ``within``, for ``minutes`` among the ``budget``."""
    own = data.options(place, private)
    own |= {name: value for name, value in budget.items() if value is not None}
    for name in budget.keys() & own.keys():
        if not isinstance(own[name], Real):
            raise InvalidInput(name, "a number", own[name])
    named, minutes = data.named(settings), own.pop("minutes", None)
    config = config_of(own_settings(own, named))
    if minutes is None:
        return config
    decided, own = "backbone" in named.get("student", {}), own | {"refine": True}
    other = refined(minutes, decided, lambda: own_settings(own, named))
    return within(minutes, config, other, folder, console)


def _require_data(data: Any) -> None:
    """Raise InvalidInput unless ``data`` is a Data."""
    if not isinstance(data, Data):
        rule = "labelwall.Data(private=(rows, labels), public=rows, test=(rows, labels))"
        raise InvalidInput("data", rule, type(data).__name__)


def _kept(custody: Path) -> Path:
    """The folder for rows in memory of a custodian's directory, which they make known as one."""
    from ..teacher.custodian import LOCK  # where the rows are private, and nowhere else
    from ..teacher.private_files import make_private, open_lock

    for folder in (custody, custody / ROWS):
        make_private(folder)
    open_lock(custody / LOCK).close()
    return custody / ROWS


def _temporary(
    data: Data, custody: str | Path | None, console: Console
) -> tuple[Path, str | Path | None]:
    """(run_dir, custody) of a call that names none: always said, since a ledger is there."""
    lines = [f"run_dir={str(data.scratch / 'run')!r}"]
    if data.keeps_rows and custody is None:
        custody = data.scratch / "custody"
        lines.append(
            f"custody={str(custody)!r}, PRIVATE. Name both to continue in another program; another "
            "custody of the same rows is another budget, and the epsilons add up"
        )
    console.warn(f"temporary folders: {', '.join(lines)}")
    return data.scratch / "run", custody


def fit(
    data: Data,
    /,
    epsilon: float = 1.0,
    *,
    run_dir: str | Path | None = None,
    custody: str | Path | None = None,
    teachers: Sequence[str] = (),
    delta: float | None = None,
    expected_records: int | None = None,
    periods: int | None = None,
    minutes: float | None = None,
    isolate: bool = False,
    quiet: bool = False,
    loggers: Sequence[Any] = (),
    **settings: Any,
) -> Model:
    """Train a model that is differentially private with respect to ``data.private``.

    The same arguments resume a killed call, and return the finished model at no charge. A call that
    stops since the private rows do not show is resumed with mended ones.

    Args:
        data: private, public and test rows.
        epsilon: what one record can change: whatever is released is at most e^epsilon times as
            likely with it as without it.
        run_dir: folder for the results; public. A temporary one by default.
        custody: the custodian's directory, PRIVATE: the ledger of these records, and those of them
            that are given in memory. Beside the private rows by default; for those in memory a
            temporary one, where ``run_dir`` is left out, too. One directory is one budget; the
            epsilons of two over the same records add up.
        teachers: URLs of custodians' services, who have the private rows: no private row is read
            here. Keys are in LABELWALL_KEY, separated by commas. ``epsilon`` must be enough for
            their plan, which has its delta, mechanism, rounds, score and periods.
        delta: probability added to that bound; by default 1e-5, less for many public rows.
        expected_records: a PUBLIC guess of the number of private records.
        periods: equal parts of the budget: one for this call, and one for each ``Model.update``.
        minutes: images: their network learns, too (``student={"backbone": "pretrained"}``), if
            that takes at most so many minutes by a forecast on public rows.
        isolate: the teacher in a process of its own; this one opens no private file.
        quiet: print nothing, unless another budget adds up with this one.
        loggers: of Lightning, which hear the public metrics of the students' trainings.
        settings: settings by name, those of a group as a dict: ``student={"steps": 900}``
            (`labelwall run --help-all`).

    Raises LabelwallError with one line, as the command line does: InvalidInput, MissingData,
    BudgetRefused, LedgerMismatch (another plan for the same directory).
    """
    _require_data(data)
    console = Console(quiet=quiet, loggers=loggers)
    with owner_alone():
        if run_dir is None:
            run_dir, custody = _temporary(data, custody, console)
        run_dir = place = Path(run_dir)
        folder = RunFolder(run_dir)
        if teachers:
            settings = {"teacher": list(teachers), "mechanism": {"kind": AUTO}, **settings}
            place = run_dir / ROWS
            place.mkdir(parents=True, exist_ok=True)
        elif data.in_memory:
            if custody is None:
                raise InvalidInput("custody", "the custodian's directory, for rows in memory", None)
            place = _kept(Path(custody))
            if folder.stopped.exists() and not folder.summary.exists():
                data.replace_private(place)  # by mended ones
        if custody is not None:
            settings = {"custodian_dir": str(Path(custody).absolute()), **settings}
        budget = {"epsilon": epsilon, "delta": delta, "expected_records": expected_records}
        budget |= {"periods": periods, "minutes": minutes}
        config = _configured(data, place, settings, not teachers, folder, console, **budget)
        train(config, run_dir, console, isolate)
        write_file(run_dir / LABELS, data.label_type())
    return load(run_dir)


@dataclass(frozen=True)
class Price:
    """What a run costs, from public facts alone; prints as a table.

    ``fields``: as `labelwall plan --json` prints them. ``releases``: what it pays for.
    """

    epsilon: float
    delta: float
    fields: dict[str, Any] = field(repr=False)
    text: str = field(repr=False)
    releases: Plan = field(repr=False)

    def __str__(self) -> str:
        return self.text

    def epsilon_at(self, delta: float) -> float:
        """The epsilon that is proved of the same noise at another delta. Raises InvalidInput."""
        from ..teacher.accounting.accountant import certified_epsilon

        return round_up(certified_epsilon(replace(self.releases, delta=delta)))

    def _repr_html_(self) -> str:
        known = {"epsilon": self.epsilon, "delta": f"{self.delta:g}"}
        known |= {name: self.fields[name] for name in ("reason",) if name in self.fields}
        style = "white-space: pre; overflow-x: auto"  # lines of a table are whole
        return f'{table(known.items())}<pre style="{style}">{html.escape(self.text)}</pre>'


def plan(
    data: Data,
    /,
    epsilon: float = 1.0,
    *,
    delta: float | None = None,
    expected_records: int | None = None,
    periods: int | None = None,
    minutes: float | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Price:
    """The price of ``fit`` with these arguments, and a forecast where the method is rehearsed.

    Opens no private row, and costs no privacy: ask as often as you like. Arguments as for ``fit``.
    Raises BudgetRefused where the settings cost more than ``epsilon``.
    """
    from ..teacher.accounting.accountant import require_affordable

    _require_data(data)
    console = Console(quiet=quiet)
    with TemporaryDirectory() as scratch:
        budget = {"epsilon": epsilon, "delta": delta, "expected_records": expected_records}
        budget |= {"periods": periods, "minutes": minutes}
        config = _configured(data, Path(scratch), settings, False, None, console, **budget)
        config, shown, text = priced(config, console)
        require_affordable(config.plan())
        seconds, line = lasting(config, console)
    text = f"{text}\n{line}".rstrip()
    releases = solved(config.schedule).plan()
    return Price(shown["epsilon"], releases.delta, shown | seconds, text, releases)


def priced(config: Config, console: Console) -> tuple[Config, dict[str, Any], str]:
    """(the configuration with its method, what `plan --json` prints, the same as text).

    Where the method is open it is chosen on public rows. Raises InvalidInput, MissingData (public
    rows), BudgetRefused.
    """
    from .plan import show

    show.tell_columns(config.data, config.open, console)
    if not config.open:
        shown = show.describe_plan(config.schedule, console.progress)
        warning = large(config.budget.delta, config.records(1))
        return config, shown, "\n".join(filter(None, (show.render_plan(shown), warning)))
    from .plan.search import best_plan  # takes a second

    with console.timed("rehearsal"):
        config, optimum = best_plan(config, console)
    shown, records = show.describe_plan(config.schedule), optimum.goal.expected_records
    shown["expected_records"] = records
    lines = show.choices_table(optimum.tried), show.render_plan(shown), "", show.reason(optimum)
    text = "\n".join([*lines, large(config.budget.delta, records) or ""]).rstrip()
    return config, shown | show.describe_candidates(optimum), text


def lasting(config: Config, console: Console) -> tuple[dict[str, Any], str]:
    """(what `plan --json` says of a run's seconds, a line of it), with those of a rehearsal.

    Nothing where public rows are missing, or the student does not fit: a service trains none.
    """
    from .run.expected import forecast  # torch, whose import takes seconds: after the price

    with suppress(InvalidInput, MissingData):
        rehearsal = console.seconds.get("rehearsal", 0.0)
        side = replace(config.public_side(), data=replace(config.data, download=False))
        seconds, line = forecast(side, len(config.rounds), rehearsal)
        return {"seconds": seconds}, line
    return {}, ""


@dataclass(frozen=True)
class Comparison:
    """Methods beside one another; prints as a table.

    ``rows``: a dict for each line, as comparison.json has them; ``cells``: a dict for each cell, as
    comparison.csv has them; ``path``: the folder, PRIVATE.
    """

    path: Path
    rows: list[dict[str, Any]] = field(repr=False)
    cells: list[dict[str, Any]] = field(repr=False)

    def frame(self) -> Any:
        """The cells as a data frame; needs pandas."""
        import pandas

        return pandas.DataFrame(self.cells)

    def __str__(self) -> str:
        from .compare.table import render

        return render(self.rows)

    def _repr_html_(self) -> str:
        lines = [line.strip("|").split("|") for line in str(self).splitlines() if line[:1] == "|"]
        return table(lines[2:], lines[0])


def compare(
    data: Data,
    /,
    methods: Sequence[str] | None = None,
    epsilon: float | Sequence[float] = 1.0,
    *,
    out: str | Path,
    seeds: Sequence[int] = (0,),
    delta: float | None = None,
    expected_records: int | None = None,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    measure: str | None = None,
    processes: int = 1,
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
        sweep: values of settings, ``{"mechanism.k": [10, 30]}``: each value, or combination of
            them, makes a variant of each method of runs, whose cells spend budget, too.
        measure: what the table and the plot show of classes or attributes, "auroc" and the like;
            "accuracy" by default. The data frame has all of them.
        processes: cells at a time, each in a process with its share of ``threads`` and
            ``workers``, and with the data set in its memory.
        settings: as of ``fit``, and so are all others.
    """
    from ..teacher.noise.entropy import SystemEntropy
    from .compare.cells import cells_of
    from .compare.methods import methods_by_name
    from .compare.run_cells import run_cells

    _require_data(data)
    out = Path(out)
    with owner_alone():
        place = Path(f"{out}.custodian")
        options = data.options(_kept(place) if data.in_memory else place)
        budgets = [epsilon] if isinstance(epsilon, float | int) else list(epsilon)
        more = {"delta": delta, "expected_records": expected_records, "epsilon": budgets}
        given = dict.fromkeys(OWN) | {"config": [], "methods": methods, "seeds": list(seeds)}
        given["sweep"] = sweep or {}
        compared = methods_by_name(Namespace(**given | options | more), {}, data.named(settings))
        console = Console(quiet=quiet)
        rows, lines = run_cells(
            cells_of(compared, sweep=sweep),
            out,
            entropy=SystemEntropy(),
            console=console,
            measure=measure,
            processes=processes,
        )
    return Comparison(path=out, rows=rows, cells=lines)
