"""`predict`: private answers to a file of queries, with a receipt and without a student."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ...teacher.accounting.accountant import certified_epsilon, require_affordable
from ...teacher.accounting.conversion import round_up
from ...teacher.accounting.plan import Plan
from ...teacher.features.embedder import unit_length
from ...teacher.ledger.ledger import Ledger
from ...teacher.noise.entropy import Entropy
from ...wall.datasets import arrays
from ...wall.datasets.sources import Task, describe, read_public
from ...wall.errors import InvalidInput, MissingData, shape_text
from ...wall.labels.base import has_label
from ...wall.messages import Answers, ExtractorSpec, Queries
from ..config.config import Config
from .console import Console
from .extractors import extractor_of_round, starting_extractor
from .matrices import MatrixRound, ask_matrices, rows_of_round
from .public_features import embedder_of
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
    _require_custodian(config)
    require_affordable(config.plan())
    task = describe(config.data)
    asked = Queries(_rows(queries, task), slot)
    number = config.slots().index(slot) + 1 if slot in config.slots() else 1
    asks = config.mechanism_of(number).query_form
    counted = asks.matrix is not None
    learned = config.whiten or counted or asks.landmarks  # from public rows
    inputs = read_public(config.data).inputs if learned else asked.inputs

    def plain(spec: ExtractorSpec) -> np.ndarray:
        return embedder_of(config.computing, spec, inputs).features(inputs)

    extractor = extractor_of_round(starting_extractor(config.first, task, plain), asks, plain)
    with teacher_of(config, task, Path(config.custodian_dir or ""), entropy, console) as teacher:
        teacher.export(exported := out.with_suffix(".ledger.sqlite"))
        plan = _plan(exported)
        require_affordable(plan)  # the ledger's, whose numbers an earlier version may have solved
        teacher.use_extractor(extractor, probe=asked.inputs[:64])
        if counted and slot in config.slots():
            embedder = embedder_of(config.computing, extractor, inputs)
            count = config.rounds[number - 1].queries
            chosen = rows_of_round(config.seed, number, count, len(inputs))
            public, _ = embedder.embed(inputs[chosen])
            question = MatrixRound(
                config.recorded(plan).asks_of(number),
                slot,
                config.round_seed(number),
                task.num_classes,
                unit_length(extractor, public.shape[1]),
                extractor.sha256(),
                out.with_suffix(".fit"),
            )
            question.folder.mkdir(exist_ok=True)
            answers, _ = ask_matrices(teacher, question, public, embedder.embed(asked.inputs)[0])
        else:
            answers = teacher.answer(asked)
        teacher.export(exported)
    _write(out, answers, task.labels.columns(answers.labels), _guarantee(plan, entropy))
    return answers


def _require_custodian(config: Config) -> None:
    if config.custodian_dir is None and config.teacher is None:
        rule = "given, or a teacher's URL: predictions are paid from its ledger"
        raise InvalidInput("custodian_dir", rule, None)


def prediction_line(answers: Answers, out: Path) -> str:
    """What ``predict`` wrote, in one line."""
    answered = int(has_label(answers.labels).sum())
    counts = f"{answered} of {len(answers.labels)} answered, {answers.receipt.served} known before"
    return f"{counts}: {out}"


def _guarantee(plan: Plan, entropy: Entropy) -> dict[str, float | None]:
    epsilon = None if entropy.unsafe else round_up(certified_epsilon(plan))
    return {"epsilon": epsilon, "delta": plan.delta}


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
    out: Path, answers: Answers, values: dict[str, np.ndarray], guarantee: dict[str, float | None]
) -> None:
    """Write the answers, then the receipt: answers with a receipt are complete."""
    scratch = out.with_name(out.name + ".part")
    with scratch.open("wb") as file:
        np.savez(file, labels=answers.labels, outcomes=answers.outcomes, **values)  # type: ignore[arg-type]
    scratch.replace(out)
    out.with_suffix(".receipt.json").write_text(
        json.dumps({**asdict(answers.receipt), **guarantee}, indent=2)
    )
