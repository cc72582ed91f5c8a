"""Commands that take a run's settings: run, plan, compare, predict, serve, records, data, init.

Each takes the arguments after its name and returns the exit code. Its docstring is its help.
"""

import inspect
import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...wall.console import Console
from ...wall.datasets.sources import facts
from ...wall.errors import InvalidInput, extra
from ...wall.labels import has_label
from ..compare.table import MEASURES, render
from ..config.arguments import flag, option
from ..config.config import Config
from ..config.options import parse, read, value_of
from ..config.own import OWN, overrides
from ..config.settings import merged, short_yaml, to_yaml

if TYPE_CHECKING:
    from ..compare.cells import Cell

HEADER = """\
# Written by labelwall from public rows alone; `labelwall run --help-all` explains all settings.
# Next:
#   labelwall plan --config THIS_FILE    the price, before anything private is read
#   labelwall data --config THIS_FILE    the custodian's check of the private rows (not for release)
#   labelwall run  --config THIS_FILE
"""
SERVED = "#   labelwall plan --config THIS_FILE --out CHOSEN    the method, and a file to serve\n"


QUIET = flag("print nothing but the result")
MINUTES = option(
    "for images: use --refine only if its forecast is at most this many minutes",
    type=float,
)

# The options of each command that are no settings of a run; a text is the help of a text option.
OPTIONS: dict[str, dict[str, Any]] = {
    "run": {
        "--run_dir": "folder for the results, runs/NAME-OF-DATA if left out; the same folder "
        "resumes a killed run",
        "--minutes": MINUTES,
        "--quiet": QUIET,
        "--progress": option(
            "progress as text, or as json: lines of task, done, total, seconds_left",
            choices=["text", "json"],
        ),
        "--timing": flag("seconds of each part at the end; PRIVATE, for the custodian"),
        "--isolate": flag("run the teacher in a separate process; only it opens private files"),
    },
    "plan": {
        "--minutes": MINUTES,
        "--json": flag("one JSON object: epsilon, delta, certificates, rounds"),
        "--out": "with --mechanism.kind auto: file to write the chosen configuration to",
    },
    "compare": {
        "--out": option("folder for the results; the same folder resumes", required=True),
        "--methods": option(
            "for your own data: auto, other kinds of mechanisms, and baselines such as "
            "linear_noisy_sgd, of images noisy_sgd; each spends its own budget (default: auto, "
            "private_knn, gnmax and linear_noisy_sgd)",
            nargs="+",
        ),
        "--epsilon": option("budgets of --methods (default: 1)", type=float, nargs="+"),
        "--seeds": option("public randomness of the repetitions", type=int, nargs="+"),
        "--sweep": option(
            "a setting and its values, such as mechanism.k 10 30: every value is tried with every "
            "method that makes runs; each try spends budget",
            nargs="+",
            type=value_of,
            action="append",
            default=[],
        ),
        "--measure": option(
            "measure in the table and the plot, for classes or attributes (default: accuracy)",
            choices=MEASURES,
        ),
        "--processes": option(
            "cells at a time, each in a process with its share of --threads and --workers, and "
            "with the data set in its memory (default: 1)",
            type=int,
            default=1,
        ),
    },
    "predict": {
        "--queries": option(
            "table with the private one's columns, or npz file with the array x: rows like the "
            "public inputs",
            required=True,
        ),
        "--out": option(
            "npz file to write: labels, outcomes; a receipt and the ledger beside", required=True
        ),
        "--quiet": QUIET,
    },
    "records": {
        "change": option(
            "add the rows of --rows; remove what --ids, --images or --persons name",
            choices=["add", "remove"],
        ),
        "--rows": "with add: table like data.private with a column of ids (data.id), folder with "
        "one folder of images or texts a class, or npz file with private_x, private_y, private_id "
        "(and private_person)",
        "--ids": "with remove: ids of records separated by commas, as their table's column has "
        "them; whole numbers of an npz file",
        "--ids_file": "with remove: text file with one id a line",
        "--images": option(
            "with remove: paths of images or texts within data.private", nargs="+", default=[]
        ),
        "--persons": "with remove: ids of persons, separated by commas: all their rows",
        "--persons_file": "with remove: text file with one person's id a line",
        "--dry_run": flag("say what would be done, and change nothing"),
    },
    "init": {"--minutes": MINUTES, "--out": option("file to write", default="labelwall.yaml")},
}


def options_of(command: str) -> dict[str, Any]:
    """A command's own options, and groups of its settings."""
    if command == "serve":  # whose settings an analyst's process does not load
        from ...teacher.service.service_config import ServiceConfig

        return {"service": ServiceConfig}
    return OPTIONS.get(command, {})


def _parsed(
    command: Callable[[Sequence[str]], int], args: Sequence[str]
) -> tuple[Config, Namespace]:
    name, does = command.__name__, inspect.getdoc(command)
    return parse(args, name, does or "", options_of(name))


def _timely(
    config: Config, rest: Namespace, console: Console, folder: Path | None = None
) -> Config:
    """The configuration that given minutes allow, or that a run's ``folder`` has already."""
    if rest.refined is None:
        return config
    from ..run.door import within
    from ..run.run_folder import RunFolder

    known = None if folder is None else RunFolder(folder)
    return within(rest.minutes, config, rest.refined, known, console)


def run(args: Sequence[str]) -> int:
    """Run or resume an experiment: ask, train, send features back. Prints the price first."""
    config, rest = _parsed(run, args)
    from ..whole_run import train

    run_dir = Path(rest.run_dir or Path("runs", rest.name or config.data.source))
    console = Console(quiet=rest.quiet, json=rest.progress == "json")
    config = _timely(config, rest, console, run_dir)
    summary = train(config, run_dir, console, rest.isolate)
    from ..run.lines import result_line  # torch, whose import takes seconds: after the first line

    print(result_line(summary, run_dir))
    if rest.timing:
        print("seconds: " + ", ".join(f"{part} {s:.1f}" for part, s in console.seconds.items()))
    return 0


def demo(args: Sequence[str]) -> int:
    """The quickstart: a run on 5,000 real MNIST images of a Python package, to runs/demo."""
    config = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
    return run(["--config", str(config), "--run_dir", "runs/demo", *args])


def plan(args: Sequence[str]) -> int:
    """Show what a configuration costs, and how long a run takes; exit code 2 when its caps exceed
    the budget. Reads public data alone. A price needs none, unless --mechanism.kind auto leaves
    the method to them.
    """
    config, rest = _parsed(plan, args)
    from ...teacher.accounting.accountant import require_affordable
    from ..api import lasting, priced

    console = Console(quiet=rest.json)
    config = _timely(config, rest, console)
    if rest.out and not config.open:
        why = "without --mechanism.kind auto there is no method to choose"
        raise InvalidInput.needless("out", why)
    out = Path(rest.out) if rest.out else None
    if out is not None and out.exists():
        raise InvalidInput("out", "a file that does not exist yet", str(out))
    config, shown, text = priced(config, console)
    if not rest.json:
        print(text, flush=True)
        require_affordable(config.plan())
    seconds, line = lasting(config, console)
    print(json.dumps(shown | seconds) if rest.json else line)
    require_affordable(config.plan())
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(to_yaml(config))
        if not rest.json:
            print(f"wrote {out}. Next: labelwall run --config {out} --run_dir DIR")
    return 0


def compare(args: Sequence[str]) -> int:
    """Run several methods on the same split, students and budgets, for one table (JSON, CSV,
    Markdown) and a plot. The methods are those of a file, or --methods on your own data:
    each then has its noise from --epsilon and its settings from public rows. Each cell is a
    separate release of the same records, which spends the sum. The same command continues a
    comparison that was interrupted.
    """
    cells, given = parse_cells(args)
    from ...teacher.noise.entropy import SystemEntropy

    with extra("compare", "comparisons"):
        import matplotlib  # noqa: F401 - missed here, before anything is charged
        import opacus  # noqa: F401
    from ..compare.run_cells import run_cells

    rows, _ = run_cells(
        cells,
        Path(given.out),
        entropy=SystemEntropy(),
        console=Console(),
        measure=given.measure,
        processes=given.processes,
    )
    print(render(rows))
    return 0


def parse_cells(args: Sequence[str]) -> "tuple[list[Cell], Namespace]":
    """(all cells, the command's own options) of a comparison.

    Prints a help that ``args`` ask for, and exits. Raises BadSetting, MissingData, or the
    InvalidInput of the field that breaks a rule.
    """
    does = inspect.getdoc(compare) or ""
    given, files, dotted = read(args, "compare", does, OPTIONS["compare"], {"": Config})
    from ..compare.cells import cells_of

    given.sweep = {str(name): values for name, *values in given.sweep}
    if "methods" not in files:
        from ..compare.methods import methods_by_name  # takes a second

        settings = methods_by_name(given, files, dotted)
        return cells_of(settings, sweep=given.sweep), given
    for name in ("methods", "epsilon"):
        if getattr(given, name) is not None:
            raise InvalidInput.needless(name, "the file has methods with budgets of their own")
    own = {name: value for name in OWN if (value := getattr(given, name)) is not None}
    compared = merged(merged(files, overrides(own)), dotted)
    return cells_of(compared, given.seeds, given.sweep), given


def predict(args: Sequence[str]) -> int:
    """Answer the rows of a table, or of an npz file (array x), and write labels, receipt and
    ledger. Spends budget; a finished student labels rows by `labelwall classify`, at no charge.
    """
    if any(word.partition("=")[0] == "--student" for word in args):
        why = "predict asks the private rows, and spends budget"
        cure = "`labelwall classify --student DIR --vectors FILE --out FILE` labels by a student."
        raise InvalidInput.needless("student", why, cure)
    config, rest = _parsed(predict, args)
    from ..plan.show import announce

    console, out = Console(quiet=rest.quiet), Path(rest.out)
    side, settings = config.private_side(), config.public_side()
    announce(side.data, side.schedule, side.schedule, console)
    if config.teacher is None:
        from ...teacher.custody.places import beside_rows, require_budget, require_there

        side = beside_rows(side)
        if side.directory is not None:
            require_budget(side)
        require_there(side.data)
    from ...teacher.noise.entropy import SystemEntropy
    from ..run import predict as prediction

    queries, entropy = Path(rest.queries), SystemEntropy()
    answers = prediction.predict(side, settings, queries, out, entropy=entropy, console=console)
    answered, known = int(has_label(answers.labels).sum()), answers.receipt.served
    sums = side.schedule.mechanism_of(1).query_form.matrix is not None
    known_before = f"{known} {'sums ' if sums else ''}known before"
    print(f"{answered} of {len(answers.labels)} answered, {known_before}: {out}")
    return 0


def serve(args: Sequence[str]) -> int:
    """Answer requests over HTTP from one custodian's directory, until SIGTERM or Ctrl-C. Prints the
    URL.
    """
    config, rest = _parsed(serve, args)
    from ...student.public_settings import ServedFeatures
    from ...teacher.custody.places import beside_rows
    from ...wall.datasets.texts import model_name
    from ..plan.show import announce

    side = beside_rows(config.private_side())
    announce(side.data, side.schedule, side.schedule, Console())
    from ...teacher.noise.entropy import SystemEntropy

    with extra("service", "services"):
        from ...teacher.custody import serving

    offered = ServedFeatures(
        features=config.features,
        weights=config.weights and Path(config.weights).name,
        box=config.box,
        whiten=config.whiten,
        by_count=config.by_count,
        text_features=model_name(config.data.text_features),
        white=config.data.white,
    )
    serving.serve(side, rest.service, entropy=SystemEntropy(), features=asdict(offered))
    return 0


def records(args: Sequence[str]) -> int:
    """PRIVATE, for the custodian: change the records behind a custodian's directory between any two
    queries. Removed data is deleted from the directory; what a record spent stays, so that adding
    it again refills nothing. Nothing is charged.
    """
    config, rest = _parsed(records, args)
    from ...teacher.custody.places import beside_rows
    from ...teacher.custody.records import add_records, ids_of, remove_records

    side, console = beside_rows(config.private_side()), Console()
    if rest.change == "add" and rest.rows is None:
        raise InvalidInput.missing("rows", "they are what is added")
    if rest.change != "add" and rest.rows is not None:
        raise InvalidInput.needless("rows", "only `labelwall records add` reads them")
    if rest.change == "add":
        print(add_records(side, Path(rest.rows), dry_run=rest.dry_run, console=console))
    else:
        ids = ids_of(side, rest)
        print(remove_records(side, ids, dry_run=rest.dry_run, console=console))
    return 0


def data(args: Sequence[str]) -> int:
    """PRIVATE, for the custodian: counts, classes and bad rows of the private data set."""
    config, _ = _parsed(data, args)
    from ...teacher.records.inspect import preview

    print(preview(config.data, unit=config.privacy.unit))
    return 0


def init(args: Sequence[str]) -> int:
    """Write a configuration for your own data. Opens no private file. Settings as for `run`, such
    as --student.steps 900, are written too.
    """
    config, options = _parsed(init, args)
    out, config = Path(options.out), _timely(config, options, Console())
    known = "".join(f"# {line}\n" for line in facts(config.data))
    content = f"{HEADER}{SERVED if config.open else ''}\n{known}\n{short_yaml(config)}"
    if out.exists():
        raise InvalidInput("out", "a file that does not exist yet", str(out))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(content, encoding="utf-8")
    except OSError as error:
        raise InvalidInput("out", "a file that can be written", str(out)) from error
    print(f"wrote {out}. Next: labelwall plan --config {out}")
    return 0
