"""Every file in configs/ loads, names known things, and costs what it says."""

from dataclasses import fields
from pathlib import Path

import pytest

from labelwall.experiment.commands.configured import parse_cells
from labelwall.experiment.config.config import Config
from labelwall.experiment.config.groups import BudgetConfig, CapsConfig, PrivacyConfig, RoundConfig
from labelwall.experiment.config.settings import load_config
from labelwall.student.config import StudentConfig
from labelwall.teacher.accounting.accountant import require_affordable
from labelwall.teacher.mechanisms.registry import MECHANISMS
from labelwall.teacher.service.config import ServiceConfig
from labelwall.teacher.shards.config import ScaleConfig
from labelwall.wall.datasets.config import DataConfig

FILES = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))
COMPARISONS = [path for path in FILES if path.stem.startswith("compare_")]
CONFIGS = [path for path in FILES if path not in COMPARISONS]


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.stem)
def test_every_point_of_a_comparison_fits_its_budget(path: Path) -> None:
    cells, _ = parse_cells(["--config", str(path), "--out", "unused", "--seeds", "0"])
    runs = [cell.config for cell in cells if cell.runs]
    assert runs
    for config in runs:
        assert config.mechanism.uncalibrated  # the budget decides the noise
        require_affordable(config.plan())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_loads_and_fits_its_budget(path: Path) -> None:
    require_affordable(load_config(path).plan())


def test_mnist_paper_has_the_papers_parameters() -> None:
    config = load_config(next(path for path in CONFIGS if path.stem == "mnist_paper"))
    screen, aggregate = config.plan().releases()
    noise = {"sigma": pytest.approx(75.0, rel=0.01), "sample_rate": 0.15}  # solved
    assert screen.parameters == {"max_votes": 300, "threshold": 180, **noise}
    assert aggregate.parameters == noise | {"sigma": pytest.approx(25.0, rel=0.01)}
    counts = screen.cap, aggregate.cap, len(config.rounds), config.budget.delta
    assert counts == (1000, 735, 2, 1e-5)
    assert config.student.backbone == "mnist_cvpr20"


def test_settings_are_few_enough_to_know() -> None:
    """Names under which YAML files and options set something; a mechanism's own count once."""
    groups = (Config, DataConfig, BudgetConfig, PrivacyConfig, CapsConfig, RoundConfig)
    kinds = (*groups, StudentConfig, ScaleConfig, ServiceConfig)
    names = {(kind.__name__, entry.name) for kind in kinds for entry in fields(kind)}
    own = {entry.name for kind in MECHANISMS.values() for entry in fields(kind)}
    assert len(names) + len(own) <= 150
