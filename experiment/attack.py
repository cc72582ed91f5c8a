"""`attack`: how often a released model tells which rows it was trained on. PRIVATE.

It reads private rows outside a priced release. So it writes nothing anywhere, not even a cache, and
what it finds is the custodian's. A row's score says how much surer the model is of its label than
expected, and a row whose score is high is called a member:

- *likelihood ratio* (Carlini et al. 2022, offline, with one variance for all rows), for a released
  linear classifier of classes: expected is the mean of shadow models on halves of the public rows,
  whose labels are the released model's;
- *loss threshold by class* (Yeom et al. 2018), for every other model: expected is the mean of the
  non-members of the class, in their deviations.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import log_expit, logsumexp
from scipy.stats import binomtest

from ..student.student_model import BATCH, Preprocessed, preprocessed
from ..teacher.accounting.risk import RATES, share
from ..teacher.records.inspect import BANNER
from ..teacher.records.private_records import open_records
from ..wall.datasets.arrays import required_member
from ..wall.datasets.sources import describe, read_public
from ..wall.datasets.tables import is_table, read_records
from ..wall.errors import InvalidInput, require_known
from ..wall.labels import LabelSpace
from ..wall.messages import RELEASED
from ..wall.progress import Progress, TaskProgress, no_progress
from .config.settings import load_config
from .model import Model, audit
from .whole_run import owner_alone

SHADOWS = 16  # models, each of half of the public rows
FEW = 10  # non-members of a class, below which its own mean tells little
IMPROBABLE, TINY = -30.0, 1e-12  # a logit; a deviation
CONFIDENCE = 0.95
FEW_OUTSIDE = (
    "above the bound, but with so few non-members this can be chance. Give more with --nonmembers."
)
ABOVE = (
    "ABOVE THE BOUND: either members and non-members differ in other ways, or the ledger is wrong."
)
RATIO, LOSS = "likelihood ratio, shadow models on public rows", "loss threshold"


@dataclass(frozen=True, repr=False)
class Attacked:
    """What an attack found; prints as a table. PRIVATE.

    ``rows``: a dict for each false positive rate: ``false_positive_rate``, ``true_positive_rate``
    with its interval ``low`` and ``high`` (None of too few non-members), ``bound`` (proved, None
    where the ledger certifies nothing), ``above``: whether the interval lies above the bound, even
    if the threshold has more false alarms than these non-members show.
    """

    method: str
    members: int
    nonmembers: int
    rows: list[dict[str, Any]] = field(repr=False)

    def __str__(self) -> str:
        lines = [BANNER, f"{self.method}: {self.members} members, {self.nonmembers} non-members"]
        lines.append("  false alarms   members found   (95% interval)      proved bound")
        for row in self.rows:
            bound = "nothing certified" if row["bound"] is None else share(row["bound"])
            if row["true_positive_rate"] is None:
                needed = round(1 / row["false_positive_rate"])
                known = f"unknown: it takes {needed} non-members"
            else:
                found, low, high = (row[n] for n in ("true_positive_rate", "low", "high"))
                known = f"{found:13.2%}   ({low:.2%} to {high:.2%})"
            lines.append(f"  {row['false_positive_rate']:12.1%}   {known:33}   {bound}")
        bounded = [row for row in self.rows if row["bound"] is not None and row["low"] is not None]
        if any(row["above"] for row in self.rows):
            lines.append(ABOVE)
        elif any(row["low"] > row["bound"] for row in bounded):
            lines.append(FEW_OUTSIDE)
        return "\n".join(lines)

    __repr__ = __str__


@owner_alone()
def attack(
    run_dir: str | Path,
    *,
    members: Any = None,
    nonmembers: Any = None,
    progress: Progress = no_progress,
) -> Attacked:
    """Attack the model of a finished run with rows that the custodian names.

    ``members``: (rows, labels) that it was trained on, as of ``Model.score``, or the path of an npz
    file with x and y, or of a table with the run's column of labels; the run's private rows by
    default. ``nonmembers``: others from the same source; the run's test rows by default.
    ``progress`` hears how many rows the model has seen.
    Reads private rows: what it returns is PRIVATE. Raises MissingData, InvalidInput.
    """
    model, config = Model(run_dir), load_config(Path(run_dir) / "config.yaml")
    student, task, public = model.student, describe(config.data), read_public(config.data)
    space, plain = student.info.labels, preprocessed(student.info.spec(student.weights))
    if members is not None:
        inside = _given(model, "members", members, config.data.label)
    elif config.teacher is None:
        records = open_records(config.data, task, unit=config.privacy.unit)
        inside = _Rows(plain, records.inputs, records.labels)
    else:
        raise InvalidInput.missing("members", "only the services have this run's private rows")
    if nonmembers is not None:
        outside = _given(model, "nonmembers", nonmembers, config.data.label)
    else:
        outside = _Rows(plain, public.test_inputs, space.encode("test", public.test_labels))
    for name, rows in (("members", inside), ("nonmembers", outside)):
        if len(rows.codes) < 2:
            raise InvalidInput(name, "at least 2 rows with labels", "fewer")
    inside = replace(inside, progress=partial(progress, "members"))
    outside = replace(outside, progress=partial(progress, "non-members"))
    if student.info.backbone.startswith(RELEASED) and space.kind == "class":
        unlabelled = _Rows(plain, public.inputs, np.zeros(0), partial(progress, "public rows"))
        shadows = _shadows(*unlabelled.passed())
        method, scores = RATIO, [_by_ratio(space, rows, shadows) for rows in (inside, outside)]
    else:
        method = f"{LOSS} by class" if space.kind == "class" else LOSS
        scores = _by_loss(space, inside, outside)
    bounds = {r.false_positive_rate: r.true_positive_rate for r in audit(run_dir).risks()}
    found = [_found(rate, scores[0], scores[1], bounds.get(rate)) for rate in RATES]
    return Attacked(method, len(inside.codes), len(outside.codes), found)


@dataclass(frozen=True, eq=False, repr=False)
class _Rows:
    """Rows as the ``module`` takes them, and codes of their labels, int64 [n].

    Rows of the run's table are scaled already, for which a module without the table's scale is.
    """

    module: Preprocessed
    inputs: np.ndarray
    codes: np.ndarray
    progress: TaskProgress = no_progress

    def passed(self) -> tuple[np.ndarray, np.ndarray]:
        """(features float64 [n, width], outputs float64 [n, c])."""
        network, head = self.module.network, self.module.network.head
        with torch.inference_mode():
            parts, count = list[torch.Tensor](), len(self.inputs)
            for start in range(0, count, BATCH):
                rows = torch.tensor(self.inputs[start : start + BATCH])
                parts.append(network.features(self.module.preprocess(rows)))
                self.progress(min(start + BATCH, count), count)
        features = torch.cat(parts).double().numpy()
        weight, bias = (part.detach().double().numpy() for part in (head.weight, head.bias))
        return features, features @ weight.T + bias


def _given(model: Model, name: str, given: Any, label: str) -> _Rows:
    """Rows and labels that a custodian names. Raises InvalidInput, MissingData."""
    if isinstance(given, str | Path) and is_table(Path(given)):
        columns, _ = read_records(name, given, [label])
        require_known(name, [label], columns, "a table with the run's column of labels")
        given = given, columns[label]
    elif isinstance(given, str | Path):
        given = tuple(required_member(str(given), array) for array in ("x", "y"))
    if not (isinstance(given, tuple) and len(given) == 2):
        raise InvalidInput(name, "a pair: rows and their labels", type(given).__name__)
    student, (rows, labels) = model.student, given
    inputs, space = student.rows(model.inputs(rows)), student.info.labels
    shape = (len(inputs), space.outputs) if space.kind == "attributes" else (len(inputs),)
    return _Rows(student.module, inputs, space.encode(name, model.truth(labels, shape)))


def _sureness(space: LabelSpace, outputs: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """How sure the ``outputs`` are of the labels, float64 [n]: of classes log(p / (1 - p))."""
    if space.kind == "class":
        own = outputs[np.arange(len(codes)), codes]
        others = outputs.copy()
        others[np.arange(len(codes)), codes] = -np.inf
        return np.asarray(own - logsumexp(others, axis=1))
    if space.kind == "attributes":
        return np.asarray(log_expit(outputs * (2 * space.expand(codes) - 1)).sum(axis=1))
    return -(abs(space.predict(outputs.astype(np.float32)) - space.decode(codes)) ** 2)


def _by_loss(space: LabelSpace, inside: _Rows, outside: _Rows) -> list[np.ndarray]:
    """Scores of both, float64 [n]. A class with few non-members has the mean of all."""
    sure = [_sureness(space, rows.passed()[1], rows.codes) for rows in (inside, outside)]
    classes = [rows.codes for rows in (inside, outside)]
    if space.kind != "class":
        classes = [np.zeros_like(codes) for codes in classes]  # one for all rows
    size = 1 + int(max(labels.max() for labels in classes))
    middle, spread = np.full(size, sure[1].mean()), np.full(size, sure[1].std())
    for label in np.flatnonzero(np.bincount(classes[1]) >= FEW):
        known = sure[1][classes[1] == label]
        middle[label], spread[label] = known.mean(), known.std()
    spread = np.maximum(spread, TINY)
    return [(each - middle[at]) / spread[at] for each, at in zip(sure, classes, strict=True)]


def _shadows(features: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Weights float64 [SHADOWS, width + 1, c] of features and a constant, by PUBLIC rows.

    They are as long as the model's. A class that no row of a half has is improbable.
    """
    from sklearn.linear_model import LogisticRegression  # takes a second

    labels, rng = outputs.argmax(axis=1), np.random.default_rng(0)
    found = np.zeros((SHADOWS, features.shape[1] + 1, outputs.shape[1]))
    for weights in found:
        half = rng.permutation(len(labels))[: len(labels) // 2]
        if len(classes := np.unique(labels[half])) < 2:
            raise InvalidInput("public", "rows of at least two classes by the model", len(classes))
        fitted = LogisticRegression(max_iter=300).fit(features[half], labels[half])
        both = np.vstack([fitted.coef_.T, fitted.intercept_])
        both = both if both.shape[1] > 1 else both * [-0.5, 0.5]
        said, own = features @ both[:-1] + both[-1], outputs[:, classes]
        said, own = (logits - logits.mean(axis=1, keepdims=True) for logits in (said, own))
        weights[-1] = IMPROBABLE
        weights[:, classes] = max((said * own).sum() / max(float((said**2).sum()), TINY), 0) * both
    return found


def _by_ratio(space: LabelSpace, rows: _Rows, shadows: np.ndarray) -> np.ndarray:
    """Scores float64 [n]: log likelihood ratios for one variance, but for a factor."""
    features, outputs = rows.passed()
    expected = [
        _sureness(space, features @ weights[:-1] + weights[-1], rows.codes) for weights in shadows
    ]
    return _sureness(space, outputs, rows.codes) - np.mean(expected, axis=0)


def _found(
    rate: float, inside: np.ndarray, outside: np.ndarray, bound: float | None
) -> dict[str, Any]:
    """A row of ``Attacked``: the threshold leaves at most the ``rate`` of the non-members above."""
    row: dict[str, Any] = {"false_positive_rate": rate, "bound": bound, "above": False}
    row |= dict.fromkeys(("true_positive_rate", "low", "high"))
    if (allowed := int(rate * len(outside) + 1e-9)) < 1:
        return row
    threshold = np.sort(outside)[-allowed - 1]
    found = binomtest(int((inside > threshold).sum()), len(inside))
    interval = found.proportion_ci(CONFIDENCE, "exact")
    row["true_positive_rate"] = found.statistic
    row["low"], row["high"] = float(interval.low), float(interval.high)
    # So often may others like the non-members be above. A bound grows at most as fast as its rate.
    alarms = binomtest(allowed, len(outside)).proportion_ci(CONFIDENCE, "exact").high
    row["above"] = bound is not None and row["low"] > bound * max(1.0, alarms / rate)
    return row
