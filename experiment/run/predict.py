"""`predict`: private answers to a file of queries, with a receipt and without a student."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
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
from ...wall.labels import LabelSpace, has_label
from ...wall.messages import Answers, ExtractorSpec, Queries
from ..config.config import Config
from ..config.groups import PublicSide, Round
from .console import Console
from .features import (
    PROBE,
    Plain,
    embedder_of,
    extractor_of_round,
    quantised,
    starting_extractor,
)
from .matrices import (
    MatrixRound,
    ask_matrices,
    axes_by_count,
    known_rows,
    one_step_fewer,
    question_of,
)
from .query_selection import choose_queries
from .run_folder import npz, write_file
from .teachers import Answering, teacher_of


def predict(
    config: Config, queries: Path, out: Path, *, slot: int, entropy: Entropy, console: Console
) -> Answers:
    """Answer the rows of an npz file with the first round's features.

    A mechanism that counts by matrices is asked as the slot's first round asks, with public rows;
    any number of queries is then labelled for nothing. The matrices are kept in ``out``.fit.

    Known queries are served from the ledger. ``queries``: an npz file with ``x``, rows like the
    data set's public inputs.

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
    inputs, known = asked.inputs, None
    if learned:
        inputs, known = _public(config)

    def plain(spec: ExtractorSpec) -> np.ndarray:
        if not features:  # of one network, whatever the axes
            features.append(embedder_of(settings.computing, spec, inputs).features(inputs))
        return features[0]

    features = list[np.ndarray]()
    first = starting_extractor(settings.first, task, plain)

    def on_axes(axes: int | None) -> ExtractorSpec:
        return extractor_of_round(first, replace(form, axes=axes), plain)

    with teacher_of(side, task, side.directory or Path(), entropy, console) as teacher:
        teacher.export(exported := out.with_suffix(".ledger.sqlite"))
        plan = _plan(exported)
        require_affordable(plan)  # the ledger's, whose numbers an earlier version may have solved
        teacher.use_extractor(on_axes(form.axes), probe=asked.inputs[:PROBE])
        if form.matrix is not None:
            current = config.recorded(plan).public_side().rounds[paying[0].number - 1]
            place = out.with_suffix(".fit")  # of the matrices
            answers = _by_matrices(
                teacher, current, settings, task, place, inputs, known, asked.inputs, plain, on_axes
            )
        else:
            answers = teacher.answer(asked)
        teacher.export(exported)
    epsilon = None if entropy.unsafe else round_up(certified_epsilon(plan))
    receipt = {**asdict(answers.receipt), "epsilon": epsilon, "delta": plan.delta}
    _write(out, answers, task.labels, receipt)
    return answers


def _public(config: Config) -> tuple[np.ndarray, np.ndarray | None]:
    """Public rows, and those of their labels that are learned."""
    public = read_public(config.data)
    return public.inputs, public.labels if config.taught else None


def _by_matrices(
    teacher: Answering,
    current: Round,
    settings: PublicSide,
    task: Task,
    place: Path,
    public: np.ndarray,
    known: np.ndarray | None,
    rows: np.ndarray,
    plain: Plain,
    on_axes: Callable[[int | None], ExtractorSpec],
) -> Answers:
    """Answers for ``rows`` as the slot's first round asks, with ``public`` rows and the labels that
    are ``known`` of them.
    """

    def asked(axes: int | None) -> tuple[ExtractorSpec, np.ndarray, MatrixRound]:
        spec = on_axes(axes)
        features = quantised(spec, plain(spec))[0]
        question = question_of(current, task.num_classes, spec, features.shape[1], place)
        return spec, features, question

    place.mkdir(exist_ok=True)
    spec, features, question = asked(current.form.axes)
    guess = settings.records or len(public)
    if axes := axes_by_count(teacher, question, features.shape[1], guess, plain(spec)):
        current = one_step_fewer(current)
        spec, features, question = asked(axes)
        teacher.use_extractor(spec, probe=rows[:PROBE])
    unasked, count = np.zeros(len(public), dtype=np.uint8), current.queries or len(public)
    chosen = choose_queries(settings.seed, current.number, unasked, count)
    question = replace(question, known=known_rows(known, features))
    asking = embedder_of(settings.computing, spec, public).embed(rows)[0]
    return ask_matrices(teacher, question, features[chosen], asking)[0]


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


def _write(out: Path, answers: Answers, labels: LabelSpace, receipt: dict[str, Any]) -> None:
    """Write the answers, then the receipt: answers with a receipt are complete."""
    columns = {"values": labels.decode(answers.labels)} if labels.kind == "value" else {}
    write_file(out, npz(labels=answers.labels, outcomes=answers.outcomes, **columns))
    out.with_suffix(".receipt.json").write_text(json.dumps(receipt, indent=2))
