"""labelwall's command line: from private labelled rows to a differentially private student."""

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from importlib import metadata

# Absolute, so that `python pipeline.py` works where `pip install -e .` installed the checkout
from labelwall.wall.errors import LabelwallError, meant, reason_of

COMMANDS = {
    "demo": "the quickstart: two rounds on 5,000 real MNIST images, in a minute or two",
    "run": "ask, train, send features back, for every round; prints the price first",
    "update": "ask about the private rows as they are now, by the next period of a run's plan",
    "plan": "what a configuration costs, before anything private is read",
    "compare": "run several methods on the same split, students and budgets; one table and a plot",
    "predict": "private answers to a file of queries, with a receipt; no student",
    "audit": "recompute the certificate from a ledger file alone",
    "attack": "PRIVATE: how often an attack on a model tells which rows it was trained on",
    "classify": "a student's labels and probabilities for new images or vectors, as a CSV file",
    "export": "a student as ONNX, a timm model or a Hugging Face folder",
    "report": "write a run folder's report.html and model card again",
    "records": "PRIVATE: the custodian adds or removes records; nothing is trained or charged",
    "data": "PRIVATE: the custodian's check of a data set (counts, classes, bad rows)",
    "init": "write a configuration for your own data, as a file to edit",
    "serve": "the teacher as a service: answers over HTTP from one custodian's directory",
    "keys": "who may ask a service: add, list or revoke API keys",
}
# Their functions are in another file.
FILES = ("update", "audit", "attack", "classify", "export", "report", "keys")
# New objects before the collector looks for cycles: loading torch makes a million that stay, which
# by 700 takes a second.
COLLECTED = 100_000
# They read or write private files.
PRIVATE = (
    *("demo", "run", "update", "compare", "predict", "attack", "records", "data", "serve", "keys"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `labelwall`.

    Exit code 0, 2 for a user's mistake (one line on stderr), 3 for an inconsistent ledger.
    """
    gc.set_threshold(COLLECTED)
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()  # here, where a closed pipe can still be handled
    except LabelwallError as error:
        return _mistake(str(error))
    except BrokenPipeError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except OSError as error:
        return _mistake(reason_of(error))
    except KeyboardInterrupt:
        text = "labelwall: interrupted; the same command continues where it stopped."
        print(text, file=sys.stderr)
        return 130


def _run(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(f"{__doc__}\n")
        print("\n".join(f"{name:8} {does}" for name, does in COMMANDS.items()))
        print("\n`labelwall COMMAND --help` explains a command's options.")
        return 0
    if args[0] in ("--version", "-V", "-v", "version"):
        print(f"labelwall {metadata.version('labelwall')}")
        return 0
    if args[0] not in COMMANDS:
        cure = meant(args[0], COMMANDS) or f"Commands: {', '.join(COMMANDS)}."
        return _mistake(f"unknown command {args[0]!r}. {cure}")
    if args[0] in PRIVATE:
        os.umask(0o077)  # what they write is their owner's alone
    file = "run_folders" if args[0] in FILES else "configured"  # loaded when it is asked for
    module = importlib.import_module(f"labelwall.experiment.commands.{file}")
    status: int = getattr(module, args[0])(args[1:])
    return status


def _mistake(text: str) -> int:
    print(f"labelwall: {text}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
