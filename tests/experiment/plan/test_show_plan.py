"""`plan` shows the epsilon that a paper prints beside its own, for the paper's very parameters and
for nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labelwall import pipeline
from labelwall.experiment.config.settings import load_config
from labelwall.experiment.plan.show_plan import TABLE_1, TABLE_3, published_for

CONFIGS = Path(__file__).parents[3] / "configs"
ROWS = {
    "mnist_paper": ("CVPR20 Table 1, MNIST", 0.47),
    "svhn_paper": ("CVPR20 Table 1, SVHN", 0.49),
    "cifar10_paper": ("CVPR20 Table 1, CIFAR-10", 2.92),
    "celeba_paper": ("CVPR20 Table 3, CelebA, gamma = 0.10", 1.2),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_papers_configurations_meet_their_rows(name: str) -> None:
    row = published_for(load_config(CONFIGS / f"{name}.yaml").plan())
    assert row is not None
    assert (f"{row.table}, {row.name}", row.epsilon) == ROWS[name]


def test_other_parameters_meet_none() -> None:
    for row in (*TABLE_1, *TABLE_3):
        assert published_for(row.plan()) == row
    assert published_for(load_config(CONFIGS / "mnist_reverse_knn.yaml").plan()) is None
    assert published_for(load_config(CONFIGS / "fashion_mnist_attributes.yaml").plan()) is None


def test_plan_prints_both_epsilons(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--config", str(CONFIGS / "celeba_paper.yaml")]
    assert pipeline.main(command) == 0
    assert (
        "CVPR20 Table 3, CelebA, gamma = 0.10    1.200   as the paper prints it"
        in capsys.readouterr().out
    )
    assert pipeline.main([*command, "--json", "--mechanism.sampling_probability", "0.11"]) == 0
    assert json.loads(capsys.readouterr().out)["printed"] is None
