"""`predict`: private answers to a file of queries, with a receipt and without a student."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ...teacher.accounting.accountant import certified_epsilon, require_affordable
from ...teacher.accounting.conversion import round_up
from ...teacher.accounting.plan import Plan
from ...teacher.ledger.ledger import Ledger
from ...teacher.mechanisms.base import QueryForm
from ...teacher.noise.entropy import Entropy
from ...wall.datasets import arrays
from ...wall.datasets.config import Task
from ...wall.datasets.sources import describe, read_public
from ...wall.errors import InvalidInput, MissingData, shape_text
from ...wall.labels import has_label
from ...wall.messages import Answers, ExtractorSpec, Queries
from ..config.config import Config
from .console import Console
from .features import PROBE, embedder_of, extractor_of_round, starting_extractor
from .matrices import ask_matrices, question_of, rows_of_round
from .run_folder import npz, write_file
from .teachers import teacher_of


def predict(
    config: Config, queries: Path, out: Path, *, slot: int, entropy: Entropy, console: Console
) -> Answers:
    """Answer the rows of an npz file with the first round's features.

    A mechanism that counts by matrices is asked as the slot's first round asks, with public rows;
    any number of queries is then labelled for nothing. The matrices are kept in ``out``.fit.

    Known queries are served from the ledger. ``queries``: an npz file with the array ``x``, rows
    like the data set's public inputs.

    ``out`` is an npz file with ``labels`` (int64 [n], or [n, c] for attributes; -1: none),
    ``outcomes`` (uint8 [n]) and, where rows have one, ``values`` (float64 [n], NaN: none). Beside
    it are ``.receipt.json`` (cost, what is left, the ledger's head, certified epsilon and delta)
    and ``.ledger.sqlite``, an auditor's copy.

    Raises BudgetRefused, LedgerMismatch, InvalidInput, MissingData; no data is read unless the
    plan is affordable.
    """
    side, settings = config.private_side(), config.public_side()
    if side.directory is None and side.url is None:
        rule = "given, or a teacher's URL: predictions are paid from its ledger"
        raise InvalidInput("custodian_dir", rule, None)
    require_affordable(config.plan())
    task = describe(config.data)
    asked = Queries(_rows(queries, task), slot)
    paying = [current for current in settings.rounds if current.slot == slot]
    form = paying[0].form if paying else QueryForm()
    learned = settings.first.whiten or form.matrix is not None or form.landmarks  # from public rows
    inputs = read_public(config.data).inputs if learned else asked.inputs

    def plain(spec: ExtractorSpec) -> np.ndarray:
        return embedder_of(settings.computing, spec, inputs).features(inputs)

    extractor = extractor_of_round(starting_extractor(settings.first, task, plain), form, plain)
    with teacher_of(side, task, side.directory or Path(), entropy, console) as teacher:
        teacher.export(exported := out.with_suffix(".ledger.sqlite"))
        plan = _plan(exported)
        require_affordable(plan)  # the ledger's, whose numbers an earlier version may have solved
        teacher.use_extractor(extractor, probe=asked.inputs[:PROBE])
        if form.matrix is not None:
            current = config.recorded(plan).public_side().rounds[paying[0].number - 1]
            embedder = embedder_of(settings.computing, extractor, inputs)
            chosen = rows_of_round(settings.seed, current.number, current.queries, len(inputs))
            public, _ = embedder.embed(inputs[chosen])
            (place := out.with_suffix(".fit")).mkdir(exist_ok=True)
            question = question_of(current, task.num_classes, extractor, public.shape[1], place)
            answers, _ = ask_matrices(teacher, question, public, embedder.embed(asked.inputs)[0])
        else:
            answers = teacher.answer(asked)
        teacher.export(exported)
    epsilon = None if entropy.unsafe else round_up(certified_epsilon(plan))
    receipt = {**asdict(answers.receipt), "epsilon": epsilon, "delta": plan.delta}
    space = task.labels
    columns = {"values": space.decode(answers.labels)} if space.kind == "value" else {}
    _write(out, answers, columns, receipt)
    return answers


def prediction_line(answers: Answers, out: Path) -> str:
    """What ``predict`` wrote, in one line."""
    answered = int(has_label(answers.labels).sum())
    counts = f"{answered} of {len(answers.labels)} answered, {answers.receipt.served} known before"
    return f"{counts}: {out}"


def _plan(ledger: Path) -> Plan:
    plan = Ledger(ledger).state.plan
    assert plan is not None
    return plan


def _rows(path: Path, task: Task) -> np.ndarray:
    if not path.is_file():
        raise MissingData(f"`queries` must be an existing npz file. Found {str(path)!r}.")
    queried = arrays.read_member(arrays.require_arrays(path), "x")
    if queried is None:
        raise InvalidInput("queries", "an npz file with the array x", str(path))
    rows = arrays.canonical_rows("x", queried)
    dtype = np.uint8 if len(task.input_shape) == 3 else np.float32
    if rows.shape[1:] != task.input_shape or rows.dtype != dtype:
        shape = ", ".join(map(str, task.input_shape))
        rule = f"{np.dtype(dtype)} [n, {shape}], as the data set's public inputs are"
        raise InvalidInput("x", rule, shape_text(rows))
    return rows


def _write(
    out: Path, answers: Answers, values: dict[str, np.ndarray], receipt: dict[str, Any]
) -> None:
    """Write the answers, then the receipt: answers with a receipt are complete."""
    write_file(out, npz(labels=answers.labels, outcomes=answers.outcomes, **values))
    out.with_suffix(".receipt.json").write_text(json.dumps(receipt, indent=2))
