"""A round that asks by weights: a linear model, fitted to one noisy sum of gradients after another.

The fit is student/linear's; the model labels any rows.
"""

import numpy as np

from ...wall.label_kinds import numbered_space
from ...wall.matrices import Weights
from ...wall.messages import Answers, Outcome, Receipt, join_receipts
from ...wall.questions import SumsForm
from ..linear.linear_model import fit
from ..linear.measure import FitSettings
from ..linear.neighbours import Says, with_neighbours
from ..linear.stored import stored_fit
from ..results import Estimate
from .estimates import by_model
from .matrix_round import MatrixRound


def ask_sums(current: MatrixRound, form: SumsForm) -> tuple[Answers, Estimate | None]:
    """Labels by a linear model from the noisy sums of a few steps, and their estimate.

    If a cap ends the steps early, the model is by those that were answered.
    """
    planned, features, receipts = current.planned, current.features, list[Receipt]()

    def ask(step: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        sent = current.stored(f"weights_{step}.npz", "weights", lambda: weights)
        noisy = current.count(Weights(sent, planned.slot))
        receipts.append(noisy.receipt)
        return sent, None if noisy.counts is None else noisy.counts[0]

    # Sums of a repeated round that are asked again are known, and charged once: of classes the
    # first, of values those of all rounds before
    again = current.last is not None and planned.periods == 1
    steps = form.steps
    if again:
        steps = planned.number * steps if form.labels == "value" else steps + 1
    how = FitSettings(
        labels=form.labels,
        outputs=current.extractor.num_classes,
        length=current.length,
        noise_multiplier=form.deviation,
        clip=form.clip,
        steps=steps,
        gain=form.gain,
        alike=current.folder is None or current.drawn,
        balanced=current.balanced,
    )
    earlier = None if current.last is None else stored_fit(current.last, current.extractor.sha256())
    model = fit(ask, features, how, current.labelled, earlier, again)
    if model is None:
        rows = len(current.to_label)
        labels = numbered_space(form.labels, how.outputs).no_labels(rows)
        refused = np.full(rows, Outcome.CAP_REACHED, dtype=np.uint8)
        return Answers(labels, refused, join_receipts(receipts)), None
    says: Says = model.says
    estimate = None if current.folder is None else by_model(model, form, features)
    if form.labels == "class" and not current.drawn:
        says = with_neighbours(says, features)
    current.store(model, says)
    labels, outcomes = model.to_labels(says(current.to_label), form.margin)
    return Answers(labels, outcomes, join_receipts(receipts)), estimate
