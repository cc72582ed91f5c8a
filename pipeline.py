"""labelwall's command line: from private labelled images to a differentially private student.

run      ask, train, send features back, for every round of a configuration; prints the price first
plan     what a configuration costs, before anything private is read
compare  run several methods on the same split, students and budgets; one table and plots
predict  private answers to a file of queries, with a receipt; no student
audit    recompute the certificate from a ledger file alone
report   write a run folder's report.html again
records  PRIVATE: the custodian adds or removes records; nothing is trained or charged
data     PRIVATE: the custodian's check of a data set (counts, classes, bad rows)
init     write a configuration for image folders, or a copy of a packaged one
serve    the teacher as a service: answers over HTTP from one custodian's directory
keys     who may ask a service: add, list or revoke API keys
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__" and not __package__:  # `python pipeline.py`: this folder is labelwall
    runpy.run_path(str(Path(__file__).with_name("__init__.py")))["run"]("labelwall.pipeline")

from labelwall.wall.errors import InvalidInput, LabelwallError

if TYPE_CHECKING:
    from labelwall.experiment.config.config import Config


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `labelwall`.

    Exit code 0, 2 for a user's mistake (one line on stderr), 3 for an inconsistent ledger.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help"):
        print(__doc__ + "\n`labelwall COMMAND --help` explains a command's options.")
        return 0
    if args[0] not in COMMANDS:
        return _mistake(f"unknown command {args[0]!r}. Commands: {', '.join(COMMANDS)}.")
    try:
        return COMMANDS[args[0]](args[1:])
    except LabelwallError as error:
        return _mistake(str(error))
    except KeyboardInterrupt:
        text = "labelwall: interrupted; the same command continues where it stopped."
        print(text, file=sys.stderr)
        return 130


def _mistake(text: str) -> int:
    print(f"labelwall: {text}", file=sys.stderr)
    return 2


def _run(args: Sequence[str]) -> int:
    from labelwall.experiment.config.settings import config_parser, parse
    from labelwall.experiment.plan.show_plan import price_line
    from labelwall.experiment.run.console import Console

    does = "Run or resume an experiment: ask, train, send features back. Prints the price first."
    parser = config_parser("run", does, args)
    parser.add_argument(
        "--run_dir",
        type=str,
        required=True,
        help="folder for the results; the same folder resumes a killed run",
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but the result")
    parser.add_argument(
        "--isolate",
        action="store_true",
        help="the teacher in a process of its own; this one opens no private file",
    )
    config, rest = parse(parser, args)
    console = Console(quiet=rest.quiet)
    console.say(price_line(config.plan()))

    import torch

    torch.set_num_threads(config.threads)
    from labelwall.experiment.report.report import write_report
    from labelwall.experiment.run.metrics import result_line
    from labelwall.experiment.run.rounds import run
    from labelwall.teacher.noise.entropy import SystemEntropy

    run_dir = Path(rest.run_dir)
    summary = run(config, run_dir, entropy=SystemEntropy(), console=console, isolate=rest.isolate)
    write_report(run_dir)
    print(result_line(summary, run_dir))
    return 0


def _plan(args: Sequence[str]) -> int:
    from labelwall.experiment.config.settings import config_parser, parse
    from labelwall.experiment.plan.show_plan import describe_plan, render_plan
    from labelwall.teacher.accounting.accountant import require_affordable

    does = (
        "Show what a configuration costs; exit code 2 when its caps exceed the budget. "
        "Reads no data."
    )
    parser = config_parser("plan", does, args)
    parser.add_argument(
        "--json", action="store_true", help="one JSON object: epsilon, delta, certificates, rounds"
    )
    _add_optimise_options(parser)
    config, rest = parse(parser, args)
    if rest.optimise:
        return _optimise(config, rest)
    for name in ("out", "plot", "expected_records", "mean_accuracy", "min_accuracy"):
        if getattr(rest, name):
            raise InvalidInput(name, "given together with --optimise", getattr(rest, name))
    shown = describe_plan(config)
    print(json.dumps(shown) if rest.json else render_plan(shown))
    require_affordable(config.plan())
    return 0


def _add_optimise_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--optimise",
        action="store_true",
        help="search the best mechanism, caps and number of queries for the budget, "
        "from public rows alone",
    )
    parser.add_argument(
        "--out", type=str, help="with --optimise: file to write the configuration found to"
    )
    parser.add_argument(
        "--plot",
        type=str,
        help="with --optimise: PNG file of expected right labels and accuracy by epsilon",
    )
    parser.add_argument(
        "--expected_records",
        type=int,
        help="with --optimise: a public guess of the number of private records; "
        "the published split's, or the public inputs'",
    )
    parser.add_argument(
        "--mean_accuracy",
        type=float,
        help="with --optimise: mean share of right neighbours, in (0, 1); "
        "a margin model instead of votes among test rows",
    )
    parser.add_argument(
        "--min_accuracy",
        type=float,
        default=0.0,
        help="with --optimise: least expected share of right labels, in [0, 1); "
        "fewer labels, better ones",
    )


def _optimise(config: Config, options: argparse.Namespace) -> int:
    from labelwall.experiment.plan.optimise import (
        Request,
        best_plan,
        describe_optimum,
        print_optimum,
    )
    from labelwall.experiment.run.console import Console

    out, plot = (Path(name) if name else None for name in (options.out, options.plot))
    request = Request(
        out, plot, options.expected_records, options.mean_accuracy, options.min_accuracy
    )
    answer = best_plan(config, request, Console(quiet=options.json))
    if options.json:
        print(json.dumps(describe_optimum(answer)))
    else:
        print_optimum(answer, request.out)
    return 0


def _predict(args: Sequence[str]) -> int:
    from labelwall.experiment.config.settings import config_parser, parse
    from labelwall.experiment.plan.show_plan import price_line
    from labelwall.experiment.run.console import Console

    does = "Answer the rows of an npz file (array x) and write labels, receipt and ledger."
    parser = config_parser("predict", does, args)
    parser.add_argument(
        "--queries",
        type=str,
        required=True,
        help="npz file with the array x: rows like the public inputs",
    )
    parser.add_argument(
        "--out",
        type=str,
        required=True,
        help="npz file to write: labels, outcomes; a receipt and the ledger beside",
    )
    parser.add_argument(
        "--slot",
        type=int,
        default=0,
        help="which mechanism of the plan pays: its place in the list",
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but the result")
    config, rest = parse(parser, args)
    console = Console(quiet=rest.quiet)
    console.say(price_line(config.plan()))

    import torch

    torch.set_num_threads(config.threads)
    from labelwall.experiment.run.predict import predict, prediction_line
    from labelwall.teacher.noise.entropy import SystemEntropy

    out = Path(rest.out)
    answers = predict(
        config, Path(rest.queries), out, slot=rest.slot, entropy=SystemEntropy(), console=console
    )
    print(prediction_line(answers, out))
    return 0


def _compare(args: Sequence[str]) -> int:
    from labelwall.experiment.compare.config import parse_comparison
    from labelwall.experiment.run.console import Console

    config, out = parse_comparison(args)

    import torch

    torch.set_num_threads(config.threads)
    from labelwall.experiment.compare.compare import compare, render
    from labelwall.teacher.noise.entropy import SystemEntropy

    print(render(compare(config, Path(out), entropy=SystemEntropy(), console=Console())))
    return 0


def _audit(args: Sequence[str]) -> int:
    if "--empirical" in args:
        return _audit_empirical(args)
    from labelwall.teacher.ledger.auditor.auditor import audit

    parser = argparse.ArgumentParser(
        "labelwall audit",
        description="Recompute the certificate from a ledger file alone; "
        "with --empirical, attack the mechanisms.",
    )
    parser.add_argument("ledger", type=Path, help="ledger.sqlite of a run folder, or an export")
    parser.add_argument(
        "--json",
        action="store_true",
        help="one JSON object: epsilon, delta, entries, consistent, problems, head",
    )
    parser.add_argument(
        "--expect_head",
        help="hash (hex) that must stand in the chain, from a receipt or a summary.json",
    )
    options = parser.parse_args(args)
    finding = audit(options.ledger, expect_head=options.expect_head)
    if options.json:
        print(json.dumps(finding.to_json()))
    else:
        print(finding.render())
    return 0 if finding.consistent else 3


def _audit_empirical(args: Sequence[str]) -> int:
    from labelwall.experiment.config.attack import parse_attack
    from labelwall.teacher.mechanisms.registry import from_slot
    from labelwall.teacher.statistical_audit import audit_mechanisms

    plan, options = parse_attack(args)
    mechanisms = [from_slot(slot) for slot in plan.slots]
    findings = audit_mechanisms(
        mechanisms, delta=plan.delta, trials=options.trials, confidence=options.confidence
    )
    if options.json:
        print(json.dumps([finding.to_json() for finding in findings]))
    else:
        print("\n".join(f"{finding.mechanism}\n{finding.render()}" for finding in findings))
    return 3 if any(finding.refuted for finding in findings) else 0


def _report(args: Sequence[str]) -> int:
    from labelwall.experiment.report.report import write_report

    parser = argparse.ArgumentParser(
        "labelwall report", description="Write report.html of a finished run folder again."
    )
    parser.add_argument("run_dir", type=Path, help="a folder that `labelwall run` wrote")
    print(write_report(parser.parse_args(args).run_dir))
    return 0


def _data(args: Sequence[str]) -> int:
    from labelwall.experiment.config.settings import config_parser, parse
    from labelwall.teacher.records.inspect import preview, render

    does = "PRIVATE, for the custodian: counts, classes and bad rows of the private data set."
    parser = config_parser("data", does, args)
    config, _ = parse(parser, args)
    print(render(preview(config.data, *config.mechanism.sample)))
    return 0


def _records(args: Sequence[str]) -> int:
    from labelwall.experiment.config.settings import config_parser, parse
    from labelwall.experiment.run.console import Console

    does = (
        "PRIVATE, for the custodian: change the records behind a custodian's directory between any "
        "two queries. Removed data is deleted from the directory; what a record spent stays, so "
        "that adding it again refills nothing. Nothing is charged."
    )
    parser = config_parser("records", does, args)
    parser.add_argument(
        "change",
        choices=["add", "remove"],
        help="add the rows of --rows; remove what --ids or --images name",
    )
    parser.add_argument(
        "--rows",
        type=str,
        help="with add: folder with one folder of images a class, "
        "or npz file with private_x, private_y, private_id",
    )
    parser.add_argument(
        "--ids", type=str, help="with remove: ids of records, whole numbers separated by commas"
    )
    parser.add_argument("--ids_file", type=str, help="with remove: text file with one id a line")
    parser.add_argument(
        "--images",
        type=str,
        nargs="+",
        default=[],
        help="with remove: paths of images within data.private",
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="say what would be done, and change nothing"
    )
    config, rest = parse(parser, args)
    from labelwall.experiment.run.records_cli import add_records, parse_ids, remove_records

    if (rest.change == "add") != (rest.rows is not None):
        raise InvalidInput("rows", "given with add, and with nothing else", rest.rows)
    if rest.change == "add":
        print(add_records(config, Path(rest.rows), dry_run=rest.dry_run, console=Console()))
        return 0
    ids = parse_ids(rest.ids, Path(rest.ids_file) if rest.ids_file else None, rest.images)
    print(remove_records(config, ids, dry_run=rest.dry_run, console=Console()))
    return 0


def _init(args: Sequence[str]) -> int:
    from labelwall.experiment.config.init import init, packaged_configs

    parser = argparse.ArgumentParser(
        "labelwall init",
        description="Write a configuration for your own image folders (--private, --public, "
        "--test), or a copy of a packaged one (--from).",
    )
    parser.add_argument(
        "--from",
        dest="name",
        metavar="NAME",
        help=f"copy a packaged configuration: {', '.join(packaged_configs())}",
    )
    parser.add_argument(
        "--private",
        type=Path,
        help="folder with one folder of images a class; not opened by this command",
    )
    parser.add_argument(
        "--public", type=Path, help="folder of unlabelled images (class folders are allowed)"
    )
    parser.add_argument("--test", type=Path, help="public folder with one folder of images a class")
    parser.add_argument("--out", type=Path, default=Path("labelwall.yaml"), help="file to write")
    options = parser.parse_args(args)
    out, folders = options.out, (options.private, options.public, options.test)
    print(f"wrote {out}. Next: {init(out, options.name, *folders)}")
    return 0


def _serve(args: Sequence[str]) -> int:
    from labelwall.experiment.config.settings import config_parser, parse
    from labelwall.experiment.plan.show_plan import price_line
    from labelwall.teacher.service.config import ServiceConfig

    does = (
        "Answer requests over HTTP from one custodian's directory, until SIGTERM or Ctrl-C. "
        "Prints the URL."
    )
    parser = config_parser("serve", does, args)
    parser.add_class_arguments(ServiceConfig, "service")
    parser.add_argument(
        "--child",
        action="store_true",
        help="for `run --isolate`: one key from the standard input, until it closes",
    )
    config, rest = parse(parser, args)
    print(price_line(config.plan()), file=sys.stderr)
    child_of = sys.stdin.readline().strip() if rest.child else None

    import torch

    torch.set_num_threads(config.threads)
    from labelwall.experiment.run.serving import serve
    from labelwall.teacher.noise.entropy import SystemEntropy

    serve(config, rest.service, entropy=SystemEntropy(), child_of=child_of)
    return 0


def _keys(args: Sequence[str]) -> int:
    from labelwall.teacher.service.keys import Keys, render

    parser = argparse.ArgumentParser(
        "labelwall keys", description="API keys of a service. A key is shown once, when it is made."
    )
    parser.add_argument(
        "action",
        choices=["add", "list", "revoke"],
        help="what to do; a running service sees it at once",
    )
    parser.add_argument(
        "--custodian_dir",
        type=Path,
        required=True,
        help="the custodian's directory, which keeps hashes of keys",
    )
    parser.add_argument("--name", help="whose key it is: letters, digits, dots, dashes")
    parser.add_argument(
        "--role",
        default="analyst",
        help="analyst (asks, sends extractors) or custodian (records, receipts, metrics)",
    )
    parser.add_argument(
        "--queries",
        type=int,
        help="most new queries that calls under this name are charged for, a count; "
        "no cap if left out",
    )
    parser.add_argument(
        "--expires",
        help="ISO date or time (UTC) from which the key is not valid; never if left out",
    )
    options = parser.parse_args(args)
    keys = Keys(options.custodian_dir)
    if options.action == "list":
        print(render(keys.listed()))
    elif options.name is None:
        raise InvalidInput("name", "given", None)
    elif options.action == "add":
        print(keys.add(options.name, options.role, options.queries, options.expires))
    else:
        keys.revoke(options.name)
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": _run,
    "plan": _plan,
    "compare": _compare,
    "predict": _predict,
    "audit": _audit,
    "report": _report,
    "records": _records,
    "data": _data,
    "init": _init,
    "serve": _serve,
    "keys": _keys,
}

if __name__ == "__main__":
    sys.exit(main())
