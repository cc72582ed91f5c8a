"""Commands on files that a run or a custodian wrote: update, audit, attack, classify and others.

Each takes the arguments after its name and returns the exit code. Its docstring is its help.
"""

import inspect
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...wall.errors import InvalidInput
from ..config.arguments import add_options, flag, option

STUDENT = option("folder of a finished run, or its student.safetensors", type=Path, required=True)
FORMATS = {
    "onnx": "one file, checked by onnxruntime",
    "timm": "a folder for timm.create_model('local-dir:FOLDER', pretrained=True)",
    "huggingface": "a folder in the Hub's layout, with the model card; needs the run folder",
}


def _parsed(
    command: Callable[[Sequence[str]], int], args: Sequence[str], options: dict[str, Any]
) -> Namespace:
    does = inspect.getdoc(command)
    parser = ArgumentParser(f"labelwall {command.__name__}", description=does)
    add_options(parser, options)
    return parser.parse_args(args)


def audit(args: Sequence[str]) -> int:
    """Recompute the certificate from a ledger file alone; exit code 3 where it is inconsistent.

    With --empirical, run the plan's mechanisms, as configured and with little noise, on worst-case
    neighbouring data sets made for it: a lower confidence bound of epsilon next to the claim; exit
    code 3 when a claim is refuted. Reads no record.
    """
    options = {
        "ledger": option(
            "a run folder, its ledger.sqlite, or an export; with --empirical a run's configuration "
            "(YAML), too",
            type=Path,
        ),
        "--json": flag(
            "one JSON object: epsilon, delta, entries, consistent, problems, head; of "
            "attacks a list, one object for each mechanism and delta"
        ),
        "--expect_head": "hash (hex) that must stand in the chain, from a receipt or a "
        "summary.json",
        "--explain": flag("show each release, what it is priced as, and the arithmetic of epsilon"),
        "--empirical": flag("attack the mechanisms instead of reading a ledger's entries"),
        "--trials": option(
            "of attacks: queries drawn for each release on each data set, a count",
            type=int,
            default=20000,
        ),
        "--confidence": option(
            "of attacks: all lower bounds hold jointly with this probability",
            type=float,
            default=0.95,
        ),
    }
    parsed = _parsed(audit, args, options)
    if parsed.ledger.is_dir():
        parsed.ledger /= "ledger.sqlite"
    if parsed.empirical:
        return _attack(parsed)
    from ...teacher.ledger.auditor import auditor

    finding = auditor.audit(parsed.ledger, expect_head=parsed.expect_head, explained=parsed.explain)
    print(json.dumps(finding.to_json()) if parsed.json else finding.render())
    return 0 if finding.consistent else 3


def _attack(options: Namespace) -> int:
    from ...teacher.audits.cases import audit_mechanisms
    from ...teacher.ledger.ledger import Ledger
    from ...teacher.mechanisms.registry import from_slot
    from ..config.settings import load_config

    if options.ledger.suffix == ".yaml":
        plan = load_config(options.ledger).plan()
    else:
        known = Ledger(options.ledger).state.plan
        assert known is not None  # a ledger's first entry fixes it
        plan = known
    findings = audit_mechanisms(
        [from_slot(slot) for slot in plan.slots],
        delta=plan.delta,
        trials=options.trials,
        confidence=options.confidence,
        unit=plan.unit,
    )
    if options.json:
        print(json.dumps([finding.to_json() for finding in findings]))
    else:
        if plan.unit == "person":
            print("every record of the pairs is a person with several rows")
        print("\n".join(finding.render() for finding in findings))
    return 3 if any(finding.refuted for finding in findings) else 0


def attack(args: Sequence[str]) -> int:
    """PRIVATE, for the custodian: how often an attack on a finished run's model tells which rows it
    was trained on, beside the proved bound. Reads private rows. Writes no file; do not publish what
    it prints.
    """
    rows = "npz file with rows x and labels y, or a table like the run's (default: its {} rows)"
    options = {
        "--run_dir": option("folder of a finished run", type=Path, required=True),
        "--members": option(f"rows that it was trained on: {rows.format('private')}", type=Path),
        "--nonmembers": option(f"others like them: {rows.format('test')}", type=Path),
    }
    parsed = _parsed(attack, args, options)
    from ...wall.console import Console
    from .. import attack as attacks

    given = {"members": parsed.members, "nonmembers": parsed.nonmembers}
    print(attacks.attack(parsed.run_dir, **given, progress=Console().progress))
    return 0


def update(args: Sequence[str]) -> int:
    """Ask about the private rows as they are now, added and removed ones too, by the next period of
    a run's plan (--periods). That there is an update is public: ask on dates that were fixed
    beforehand, whether or not rows changed. The same command finishes a killed update; once its
    report is written, it spends the next period.
    """
    options = {
        "--run_dir": option("folder of a finished run", type=Path, required=True),
        "--quiet": flag("print nothing but the result"),
        "--isolate": flag("the teacher in a process of its own"),
    }
    parsed = _parsed(update, args, options)
    from ...experiment import whole_run
    from ...wall.console import Console
    from ..run.lines import result_line

    summary = whole_run.update(parsed.run_dir, Console(quiet=parsed.quiet), parsed.isolate)
    print(result_line(summary, parsed.run_dir))
    return 0


def classify(args: Sequence[str]) -> int:
    """Write a student's label and probabilities for each image or vector to a CSV file. Opens
    nothing private; costs no privacy.
    """
    images = "image files, or folders of them; cut, resized and converted as the public ones were"
    vectors = (
        "npy file, or npz file with the array x: vectors [n, d], or images uint8 [n, h, w, c]; for "
        "a student of a table a CSV or parquet file with its columns, or a folder of txt files"
    )
    shares = (
        "how often the classes occur among these rows, where that differs from the public rows of "
        'the run: "test" (as in the test split of the run), "estimate" (from these rows), or a '
        "JSON file with a number for each class by name"
    )
    parsed = {
        "--student": STUDENT,
        "--images": option(images, type=Path, nargs="+"),
        "--vectors": option(vectors, type=Path),
        "--shares": shares,
        "--out": option("CSV file to write", type=Path, required=True),
        "--quiet": flag("print nothing but the result"),
    }
    options = _parsed(classify, args, parsed)
    if (options.images is None) == (options.vectors is None):
        text = "Give either --images or --vectors."
        raise InvalidInput("images", "given without vectors", options.images, text=text)
    from ...student.student_model import load_student
    from ...wall.console import Console
    from ..use.classify import classify_images, classify_rows, for_shares

    student, console = load_student(options.student), Console(quiet=options.quiet)
    if options.shares:
        rows = options.images or options.vectors
        student = for_shares(student, options.student, options.shares, rows)
    if options.images:
        count, unreadable = classify_images(student, options.images, options.out, console.progress)
    else:
        for line in student.unlike(options.vectors):
            console.warn(line)
        count, unreadable = classify_rows(student, options.vectors, options.out, console.progress)
    for name in unreadable if options.images else ():
        print(f"labelwall: not a readable image, left without a label: {name}", file=sys.stderr)
    print(f"{count} labelled, {len(unreadable)} unreadable: {options.out}")
    return 0


def export(args: Sequence[str]) -> int:
    """Write a student in another format. ONNX has the preprocessing inside and gives probabilities,
    or values. Opens nothing private; costs no privacy.
    """
    formats = "; ".join(f"{name}: {what}" for name, what in FORMATS.items())
    options = {
        "--student": STUDENT,
        "--format": option(formats, required=True),
        "--out": option("file or folder to write", type=Path, required=True),
        "--input": option(
            "images that onnx takes: uint8 [n, h, w, c] of 0..255, or float32 [n, c, h, w] of "
            "0..1; of the student's size",
            choices=["uint8", "float32"],
            default="uint8",
        ),
    }
    parsed = _parsed(export, args, options)
    if parsed.format not in FORMATS:
        raise InvalidInput("format", f"one of {', '.join(FORMATS)}", parsed.format)
    from ...student.student_model import load_student
    from ..use import export as exporting

    student, source = load_student(parsed.student), parsed.student
    folder = source if source.is_dir() else source.parent
    checked = exporting.export(student, folder, parsed.format, parsed.out, parsed.input)
    print(f"{parsed.out}: {checked}")
    return 0


def report(args: Sequence[str]) -> int:
    """Write report.html and MODEL_CARD.md of a finished run folder again."""
    options = {
        "run_dir": option("a folder that `labelwall run` wrote", type=Path),
        "--registry": flag("also write registry.json and SP_800_226.md (NIST SP 800-226)"),
    }
    parsed = _parsed(report, args, options)
    from ..report.registry_entry import write_registry
    from ..report.report import write_report

    print(write_report(parsed.run_dir))
    print(parsed.run_dir / "MODEL_CARD.md")
    for path in write_registry(parsed.run_dir) if parsed.registry else ():
        print(path)
    return 0


def keys(args: Sequence[str]) -> int:
    """API keys of a service. A key is shown once, when it is added."""
    from ...teacher.service.keys import Keys, render

    options = {
        "action": option(
            "what to do; a running service sees it at once", choices=["add", "list", "revoke"]
        ),
        "--custodian_dir": option(
            "the custodian's directory, which keeps hashes of keys", type=Path, required=True
        ),
        "--name": "whose key it is: letters, digits, dots, dashes",
        "--role": option(
            "analyst (asks, sends extractors) or custodian (records, receipts, metrics)",
            default="analyst",
        ),
        "--queries": option(
            "most new queries that calls under this name are charged for, a count; a sum of a "
            "linear model is one, and so is a table of counts; no cap if left out",
            type=int,
        ),
        "--expires": "ISO date or time (UTC) from which the key is not valid; never if left out",
    }
    parsed = _parsed(keys, args, options)
    if not parsed.custodian_dir.is_dir():
        rule = "a custodian's directory, which `labelwall serve` makes"
        raise InvalidInput("custodian_dir", rule, str(parsed.custodian_dir))
    known = Keys(parsed.custodian_dir)
    if parsed.action == "list":
        print(render(known.listed()))
    elif parsed.name is None:
        raise InvalidInput.missing("name", "it says whose key is meant")
    elif parsed.action == "add":
        print(known.add(parsed.name, parsed.role, parsed.queries, parsed.expires))
    else:
        known.revoke(parsed.name)
    return 0
