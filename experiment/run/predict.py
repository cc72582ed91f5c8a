"""`predict`: private answers to a file of queries, with a receipt and without a student."""

import hashlib
import json
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...student.asking.ask import ask
from ...student.asking.asking_features import AskingRound
from ...student.asking.features import extractor_of_round, first_extractor, of_rows, whitened
from ...student.asking.public_rows import PublicRows
from ...student.public_settings import PublicSide
from ...teacher.accounting.accountant import certified_epsilon, require_affordable
from ...teacher.accounting.conversion import round_up
from ...teacher.custody.private_settings import PrivateSide
from ...teacher.custody.recorded import recorded
from ...teacher.custody.solver import solved
from ...wall.console import Console
from ...wall.datasets import arrays
from ...wall.datasets.data_config import DataConfig, Task
from ...wall.datasets.sources import describe, read_public
from ...wall.datasets.tables import encoding, read_table
from ...wall.errors import InvalidInput, MissingData, shape_text
from ...wall.files import write_arrays
from ...wall.messages import Answers, Queries, blank_inputs
from .door import NOT_IDENTITY
from .run_folder import RunFolder
from .stopping import Watch
from .teachers import teacher_of

if TYPE_CHECKING:
    from ...teacher.noise.entropy import Entropy


def predict(
    side: PrivateSide,
    settings: PublicSide,
    queries: Path,
    out: Path,
    *,
    entropy: "Entropy | None",
    console: Console,
) -> Answers:
    """Answer the rows of a file with the first round's mechanism and features.

    A mechanism that counts by matrices is asked as that round asks, with public rows; any number of
    queries is then labelled for nothing. The matrices are kept in ``out``.fit, by settings.
    ``queries``: an npz file with ``x``, rows like the data set's public inputs; of a table another
    one with its columns. ``out`` is an npz file with ``labels`` (int64 [n], or [n, c] for
    attributes; -1: none), ``outcomes`` (uint8 [n]) and, where rows have one, ``values`` (float64
    [n], NaN: none). Beside it are ``.receipt.json`` (cost, what is left, the ledger's head,
    certified epsilon and delta) and ``.ledger.sqlite``, an auditor's copy.

    Reads no data unless it is affordable. Raises as a run (BudgetRefused, InvalidInput, ...).
    """
    if side.directory is None and side.teacher is None:
        why = "the ledger that pays for predictions lies there"
        cure = "Or give `teacher`, a service's URL."
        raise InvalidInput.missing("custodian_dir", why, cure)
    if not out.absolute().parent.is_dir():
        raise InvalidInput("out", "a file in an existing folder", str(out))
    side.data.require_public("queries", queries)
    schedule = side.schedule
    require_affordable(side.plan())
    torch.set_num_threads(settings.threads)
    task, form = describe(side.data), schedule.mechanism_of(1).query_form
    asked = _rows(queries, side.data, task, console)
    learns = settings.whiten or of_rows(settings.features) or form.matrix or form.basis
    known = None
    if learns:
        public = read_public(settings.data)
        known = PublicRows.of(settings, task, public, console.progress, asked=asked)
    extractor = first_extractor(settings, task) if known is None else known.first
    folder = RunFolder(out.with_suffix(".fit"))
    folder.ledger = out.with_suffix(".ledger.sqlite")
    folder.left_out = out.with_suffix(".left_out.json")
    with teacher_of(side, task, entropy, console, left_out=folder.left_out) as teacher:
        teacher.export(folder.ledger)
        plan = folder.plan
        require_affordable(plan)  # the ledger's, whose numbers an earlier version may have solved
        if form.matrix is None or known is None:
            if known is not None:
                start = whitened(extractor, settings.whiten, known.features.plain)
                extractor = extractor_of_round(start, form, known.features.plain)
            teacher.use_extractor(extractor)
            answers = teacher.answer(Queries(asked, schedule.slots()[0]))
        else:
            slot, dataset = plan.slots[schedule.slots()[0]], folder.ledger_state().dataset
            folder.path /= _identity(settings, known.data.inputs, slot.mechanism, dataset)
            folder.create()
            current = solved(recorded(schedule, plan)).asked_rounds(settings.seed)[0]
            watch = Watch(
                teacher=teacher,
                asked=current,
                folder=folder,
                space=task.labels,
                guess=settings.records(len(known.data.inputs)),
            )
            asking = watch.remaining
            alone = AskingRound(planned=asking, results=[], folder=folder)
            answers = ask(watch, known, alone, console, "asked").answers
        teacher.export(folder.ledger)
    unsafe = entropy is not None and entropy.unsafe
    epsilon = None if unsafe else round_up(certified_epsilon(plan))
    _write(out, answers, task, {"epsilon": epsilon, "delta": plan.delta})
    folder.hide_times()
    return answers


def _identity(
    settings: PublicSide, public: np.ndarray, mechanism: dict[str, object], dataset: str
) -> str:
    """A name for what matrices depend on: settings, PUBLIC rows, and what the ledger fixed."""
    kept = {name: v for name, v in asdict(settings).items() if name not in NOT_IDENTITY}
    text = json.dumps([kept, mechanism, dataset], sort_keys=True).encode()
    return hashlib.sha256(text + np.ascontiguousarray(public).tobytes()).hexdigest()[:16]


def _write(out: Path, answers: Answers, task: Task, certified: dict[str, float | None]) -> None:
    columns = {"values": task.labels.decode(answers.labels)} if task.labels.kind == "value" else {}
    write_arrays(out, labels=answers.labels, outcomes=answers.outcomes, **columns)
    # Last: answers with a receipt are complete.
    receipt = {**asdict(answers.receipt), **certified}
    out.with_suffix(".receipt.json").write_text(json.dumps(receipt, indent=2))


def _rows(path: Path, data: DataConfig, task: Task, console: Console) -> np.ndarray:
    if data.source == "table":
        table, columns = read_table("queries", path), encoding(data)
        if table.misfits:  # an answer belongs to a record of the file
            rule = "a table whose records have a cell for each column"
            raise InvalidInput("queries", rule, f"{table.misfits} others")
        for line in columns.unlike(table.columns):
            console.warn(f"{path}, {line}")
        return columns.inputs("queries", table.columns)
    if not path.is_file():
        student = " A student labels folders of images: `labelwall classify --images`."
        cure = student if path.is_dir() else ""
        raise MissingData(f"`queries` must be an existing npz file. Found {str(path)!r}.{cure}")
    if not zipfile.is_zipfile(path):
        raise InvalidInput("queries", "an npz file, as numpy.savez writes it", str(path))
    queried = arrays.read_member(path, "x")
    if queried is None:
        raise InvalidInput("queries", "an npz file with the array x", str(path))
    rows = arrays.canonical_rows("x", queried)
    expected, found = map(shape_text, (blank_inputs(task.input_shape, 0), rows))
    if found != expected:
        raise InvalidInput("x", f"{expected}, as the data set's public inputs are", found)
    return rows
