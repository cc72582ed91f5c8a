"""`predict`: private answers to a file of queries, with a receipt and without a student."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from ...teacher.accounting.accountant import certified_epsilon, require_affordable
from ...teacher.accounting.conversion import round_up
from ...teacher.ledger.ledger import Ledger
from ...teacher.mechanisms.base import QueryForm
from ...teacher.noise.entropy import Entropy
from ...wall.datasets import arrays
from ...wall.datasets.config import Task
from ...wall.datasets.sources import describe, read_public
from ...wall.errors import InvalidInput, MissingData, shape_text
from ...wall.messages import Answers, ExtractorSpec, Queries
from ..config.config import Config
from ..config.groups import PublicSide, Round
from .console import Console
from .features import PublicFeatures, extractor_of_round, starting_extractor
from .matrices import ask_matrices, axes_by_count, known_rows, one_step_fewer
from .query_selection import choose_queries
from .run_folder import write_arrays
from .teachers import Answering, teacher_of


def predict(
    config: Config, queries: Path, out: Path, *, slot: int, entropy: Entropy, console: Console
) -> Answers:
    """Answer the rows of an npz file with the first round's features.

    A mechanism that counts by matrices is asked as the slot's first round asks, with public rows;
    any number of queries is then labelled for nothing. The matrices are kept in ``out``.fit. Known
    queries are served from the ledger.

    ``queries``: an npz file with ``x``, rows like the data set's public inputs. ``out`` is an npz
    file with ``labels`` (int64 [n], or [n, c] for attributes; -1: none), ``outcomes`` (uint8 [n])
    and, where rows have one, ``values`` (float64 [n], NaN: none). Beside it are ``.receipt.json``
    (cost, what is left, the ledger's head, certified epsilon and delta) and ``.ledger.sqlite``, an
    auditor's copy.

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
    public = read_public(config.data) if learned else None
    rows = {"public": public.inputs if public else asked.inputs, "asked": asked.inputs}
    features = PublicFeatures(settings.computing, rows, console.progress)
    first = starting_extractor(settings.first, task, features.plain)
    with teacher_of(side, task, entropy, console) as teacher:
        teacher.export(exported := out.with_suffix(".ledger.sqlite"))
        plan = Ledger(exported).state.plan
        assert plan is not None
        require_affordable(plan)  # the ledger's, whose numbers an earlier version may have solved
        extractor = extractor_of_round(first, form, features.plain)
        teacher.use_extractor(extractor)
        if form.matrix is None:
            answers = teacher.answer(asked)
        else:
            settings = config.recorded(plan).public_side()
            current = settings.rounds[paying[0].number - 1]
            place = out.with_suffix(".fit")
            known = public.labels if public and settings.taught else None
            context = settings, current, features, known
            answers = _by_matrices(teacher, *context, first, extractor, place)
        teacher.export(exported)
    epsilon = None if entropy.unsafe else round_up(certified_epsilon(plan))
    receipt = {**asdict(answers.receipt), "epsilon": epsilon, "delta": plan.delta}
    columns = {"values": task.labels.decode(answers.labels)} if task.labels.kind == "value" else {}
    write_arrays(out, labels=answers.labels, outcomes=answers.outcomes, **columns)
    # Last: answers with a receipt are complete.
    out.with_suffix(".receipt.json").write_text(json.dumps(receipt, indent=2))
    return answers


def _by_matrices(
    teacher: Answering,
    settings: PublicSide,
    current: Round,
    features: PublicFeatures,
    known: np.ndarray | None,
    first: ExtractorSpec,
    extractor: ExtractorSpec,
    place: Path,
) -> Answers:
    """As the slot's first round asks, with public rows and ``known`` labels.

    The matrices are kept in ``place``.
    """
    plain = features.plain(extractor)
    guess = settings.records or len(plain)
    if axes := axes_by_count(teacher, current, extractor, guess, plain):
        current = one_step_fewer(current)
        extractor = extractor_of_round(first, replace(current.form, axes=axes), features.plain)
        teacher.use_extractor(extractor)
    unasked, count = np.zeros(len(plain), dtype=np.uint8), current.queries or len(plain)
    chosen = choose_queries(settings.seed, current.number, unasked, count)
    public, asked = (features.quantised(extractor, name) for name in ("public", "asked"))
    place.mkdir(exist_ok=True)
    learned = known_rows(known, public)
    return ask_matrices(teacher, current, extractor, place, public[chosen], asked, learned)[0]


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
