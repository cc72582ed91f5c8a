"""Learning rates that public rows choose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from labelwall.experiment.compare.rates import MIN_ROWS, Choice, choose_rate, described
from labelwall.teacher.baselines import noisy_sgd
from labelwall.teacher.baselines.config import LinearNoisySgd
from labelwall.wall.errors import InvalidInput
from tests.experiment.tiny import CLASSES, rows

BASELINE = LinearNoisySgd(
    batch_size=50,
    expected_records=200,
    epochs=5,
    clip=1.0,
    learning_rate=1e-6,
    other_rates=[1.0, 1e5],
)


def chosen(inputs: np.ndarray, labels: np.ndarray | None) -> Choice:
    """The choice of public rows at epsilon 2."""
    how = {"epsilon": 2.0, "delta": 1e-5}
    return choose_rate(
        BASELINE, torch.from_numpy(inputs), labels, num_classes=CLASSES, seed=0, **how
    )


@pytest.mark.parametrize("labelled", [True, False])
def test_the_rate_that_learns_is_chosen(labelled: bool) -> None:
    """Not the one that stands still, nor the one that jumps about; and again the same."""
    x, y = rows(80, 2)
    choices = [chosen(x, y if labelled else None) for _ in range(2)]
    assert choices[0].rate == 1.0
    assert choices[0] == choices[1]


def test_a_rehearsal_has_the_steps_and_the_noise_of_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And none of the rows that judge it."""
    x, y = rows(80, 2)
    seen: list[tuple[int, float, int]] = []
    descend = noisy_sgd._descend

    def noted(
        config: LinearNoisySgd,
        network: nn.Module,
        inputs: torch.Tensor,
        labels: torch.Tensor,
        *rest: Any,
    ) -> None:
        seen.append((rest[1], rest[2], len(inputs)))
        assert len(inputs.unique(dim=0)) == 60
        descend(config, network, inputs, labels, *rest)

    monkeypatch.setattr(noisy_sgd, "_descend", noted)
    chosen(x, y)
    noise, *_ = noisy_sgd.calibrate(2.0, 1e-5, 50 / 200, 20)
    assert seen == [(20, noise, 200)] * 12  # three rates, each before four parts of so few rows


def test_too_few_public_rows_choose_nothing() -> None:
    x, y = rows(MIN_ROWS - 1, 2)
    with pytest.raises(InvalidInput, match="public rows"):
        chosen(x, y)


def test_a_row_says_how_its_rates_were_chosen() -> None:
    assert described([4.0, 4.0, 16.0], [4.0, 1.0, 16.0], "labelled public rows") == (
        "learning rate 4, 16 of 1, 4, 16, chosen on labelled public rows"
    )
    assert described([4.0], [4.0], None) is None
    assert np.isfinite(BASELINE.rates).all()
