"""The learning rate of a NoisySGD baseline, chosen on PUBLIC rows alone.

No private row and no test label influences it.

Training is simulated with each rate: public rows stand in for the records, as many times as there
are records for each of them, under the same steps, batches, clip and noise. The rate whose model is
most often right on public rows that were held out is taken. Where public rows have no labels,
clusters of them stand in for classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ...teacher.baselines.config import LinearNoisySgd, NoisySgd
from ...teacher.baselines.noisy_sgd import train_privately
from ...wall.errors import InvalidInput
from ...wall.progress import TaskProgress
from ..run.query_selection import k_means

MAX_ROWS = 5_000  # public rows of a simulation
MIN_ROWS = 20
HELD_OUT = 4  # one row in four is held out
FEW_ROWS = 1_000  # with fewer, every row is held out in turn: one part would judge too roughly
ITERATIONS = 30  # of k-means
LABELS, CLUSTERS, TEST_SPLIT = "labelled public rows", "clusters of public rows", "the test split"


@dataclass(frozen=True)
class Choice:
    """``rate``: the learning rate that was taken; ``by``: what it was chosen on."""

    rate: float
    by: str


def choose_rate(
    baseline: NoisySgd | LinearNoisySgd,
    inputs: torch.Tensor,
    labels: np.ndarray | None,
    *,
    num_classes: int,
    epsilon: float,
    delta: float,
    seed: int,
    progress: TaskProgress | None = None,
) -> Choice:
    """The best of the baseline's rates in simulations on PUBLIC rows; the first of equals.

    ``inputs``: float32 [n, ...].

    ``labels``: int64 [n] of the public rows, None where they have none. The same arguments give the
    same choice. Raises InvalidInput where there are fewer than MIN_ROWS public rows.
    """
    if len(inputs) < MIN_ROWS:
        rule = f"at least {MIN_ROWS}, for baseline.rate_chosen_by: public_rows"
        raise InvalidInput("public rows", rule, len(inputs))
    rows = np.random.default_rng(seed).permutation(len(inputs))[:MAX_ROWS]
    x, targets = inputs[torch.from_numpy(rows)], None if labels is None else labels[rows]
    by = CLUSTERS if targets is None else LABELS
    if targets is None:
        _, found = k_means(
            x.flatten(1).numpy(), min(num_classes, len(x)), seed=seed, iterations=ITERATIONS
        )
        targets = found.astype(np.int64)
    turn = np.arange(len(rows)) % HELD_OUT
    turns = range(HELD_OUT if len(rows) < FEW_ROWS else 1)

    def right(rate: float) -> int:
        """Number of held-out rows that models trained with this rate classify right."""
        tried = replace(baseline, learning_rate=rate)
        return sum(rehearsed(tried, turn == held) for held in turns)

    def rehearsed(tried: NoisySgd | LinearNoisySgd, held: np.ndarray) -> int:
        stand_ins = np.resize(np.flatnonzero(~held), baseline.expected_records)
        model = train_privately(
            tried,
            x[torch.from_numpy(stand_ins)],
            torch.from_numpy(targets[stand_ins]),
            num_classes=num_classes,
            epsilon=epsilon,
            delta=delta,
            seed=seed,
            progress=progress,
        )
        return int((model.predict(x[torch.from_numpy(held)]) == targets[held]).sum())

    return Choice(max(baseline.rates, key=right), by)


def described(chosen: Sequence[float], rates: Sequence[float] | None, by: str | None) -> str | None:
    """What a table's row says of its learning rates: ``chosen`` among ``rates`` on ``by``.

    None where there was no choice.

    ``rates``: None for results of earlier versions, which do not record the candidates.
    """
    taken = ", ".join(f"{rate:g}" for rate in sorted(set(chosen)))
    if rates is None:
        return f"learning rate {taken}, how it was chosen was not recorded"
    if by is None:
        return None
    among = f"learning rate {taken} of {', '.join(f'{rate:g}' for rate in sorted(rates))}"
    return (
        f"{among}, the best on the test split" if by == TEST_SPLIT else f"{among}, chosen on {by}"
    )
