"""Every file in configs/ loads and costs what it says, also by `docs/check_epsilon.py`."""

import ast
import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from labelwall.experiment.commands.configured import parse_cells
from labelwall.experiment.config.config import Config
from labelwall.experiment.config.settings import load_config, settings_of
from labelwall.experiment.plan.show import describe_plan, render_plan
from labelwall.student.student_config import StudentConfig
from labelwall.teacher.accounting.accountant import require_affordable
from labelwall.teacher.custody.groups import (
    BudgetConfig,
    CapsConfig,
    EvaluateConfig,
    PrivacyConfig,
    RoundConfig,
)
from labelwall.teacher.custody.solver import solved
from labelwall.teacher.mechanisms.registry import MECHANISMS
from labelwall.teacher.service.service_config import ServiceConfig
from labelwall.teacher.shards.scale_config import ScaleConfig
from labelwall.wall.datasets.data_config import DataConfig

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "docs" / "check_epsilon.py"
FILES = sorted((ROOT / "configs").glob("*.yaml"))
COMPARISONS = [path for path in FILES if path.stem.startswith("compare_")]
CONFIGS = [path for path in FILES if path not in COMPARISONS]


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.stem)
def test_every_point_of_a_comparison_fits_its_budget(path: Path) -> None:
    cells, _ = parse_cells(["--config", str(path), "--out", "unused", "--seeds", "0"])
    runs = [cell.config for cell in cells if not (cell.baseline or cell.reference)]
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
    kinds = (*groups, EvaluateConfig, StudentConfig, ScaleConfig, ServiceConfig)
    names = {(kind.__name__, entry.name) for kind in kinds for entry in fields(kind)}
    own = {entry.name for kind in MECHANISMS.values() for entry in fields(kind)}
    assert len(names) + len(own) <= 150


def test_errors_name_settings_that_there_are() -> None:
    own = {entry.name for kind in MECHANISMS.values() for entry in fields(kind)}
    rounds = (entry.name for entry in fields(RoundConfig))
    known = {f"mechanism.{name}" for name in (*own, "kind", "among", "given")}
    known |= {f"rounds.{name}" for name in rounds}
    for kind, group in ((Config, ""), (ServiceConfig, "service.")):
        known |= {name for name, *_ in settings_of(kind, group)}
    groups = {name.partition(".")[0] for name in known if "." in name}
    named = set()
    for folder in ("wall", "student", "teacher", "experiment"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Call(ast.Name("InvalidInput"), [ast.Constant(str(text)), *_]):
                        named.add(text.partition(",")[0])
    settings = {name for name in named if "." in name and name.partition(".")[0] in groups}
    assert "student.devices" in settings
    assert settings <= known


CHEAP = ("quickstart", "mnist_reverse_knn", "own_values", "fashion_mnist_attributes")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=() if path.stem in CHEAP else pytest.mark.slow)
        for path in CONFIGS
    ],
)
def test_the_script_finds_the_same_epsilon(path: Path) -> None:
    shown = describe_plan(load_config(path).schedule)
    done = subprocess.run(
        [sys.executable, SCRIPT],
        input=json.dumps(shown),
        capture_output=True,
        text=True,
        check=True,
    )
    found = float(done.stdout)
    assert done.stderr == ""
    # A median's curve is above its supremum by about 0.2%, and printed epsilons are rounded up.
    assert found - 0.0002 <= shown["epsilon"] <= 1.0025 * found + 0.001


def test_the_script_is_short_and_needs_numpy_and_scipy_alone() -> None:
    lines = SCRIPT.read_text().splitlines()
    imported = {
        line.split()[1].split(".")[0] for line in lines if line.startswith(("import", "from"))
    }
    assert len(lines) <= 150
    assert imported == {"json", "math", "sys", "numpy", "scipy"}


def test_plan_says_what_the_noise_of_several_custodians_costs() -> None:
    config = load_config(ROOT / "configs" / "quickstart.yaml")
    alone = describe_plan(config.schedule)
    two = replace(config, teacher=["https://a.example", "https://b.example"])
    shown = describe_plan(two.schedule)
    assert "2 custodians, each with this budget: the sum has 1.41" in render_plan(shown)
    assert "custodians" not in render_plan(alone)
    assert shown == alone | {"custodians": 2}  # the price is each one's own


def test_a_private_score_is_priced_and_shown() -> None:
    """Also by the script, beside the rounds."""
    config = load_config(ROOT / "configs" / "quickstart.yaml")
    scored = replace(config, evaluate=EvaluateConfig(share=0.2))
    shown = describe_plan(solved(scored.schedule))
    assert shown["scores"][0]["caps"] == {"score": 1}
    assert "score on the private records (slot 1): of 1 model" in render_plan(shown)
    text = json.dumps(shown)
    done = subprocess.run([sys.executable, SCRIPT], input=text, capture_output=True, text=True)
    assert float(done.stdout) == pytest.approx(shown["epsilon"], rel=2e-3)
