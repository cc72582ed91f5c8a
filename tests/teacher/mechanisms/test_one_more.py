"""CONTRIBUTING.md's example of a mechanism works: configured, planned, charged, drawn, audited."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from labelwall.experiment.config.config import Config
from labelwall.experiment.config.groups import BudgetConfig, RoundConfig
from labelwall.teacher.accounting.plan import Release
from labelwall.teacher.ledger.auditor import mechanisms as audited_mechanisms
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.mechanisms import registry
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.records.sources import Records
from labelwall.wall.datasets.config import DataConfig
from labelwall.wall.messages import ExtractorSpec, Outcome, Queries
from tests.make import LEDGER, teach

PAGE = Path(__file__).parents[3] / "CONTRIBUTING.md"


def example(pattern: str, **names: object) -> dict[str, object]:
    """What an indented example of the page's section defines, given ``names``."""
    section = PAGE.read_text().split("## Add a mechanism", 1)[1].split("\n## ", 1)[0]
    text = re.search(rf"^    {pattern}.*?(?=^\S)", section, re.MULTILINE | re.DOTALL)
    assert text
    exec(compile(textwrap.dedent(text[0]), str(PAGE), "exec", dont_inherit=True), names)
    return names


def test_the_pages_mechanism_runs_from_configuration_to_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"Literal": Literal, "Mechanism": Mechanism, "Outcome": Outcome, "Release": Release}
    made = example("@dataclass", dataclass=dataclass, **parts)["Coin"]
    monkeypatch.setitem(registry.MECHANISMS, "coin", made)
    monkeypatch.setattr(audited_mechanisms, "KINDS", {**audited_mechanisms.KINDS})
    example("KINDS", **vars(audited_mechanisms))
    config = Config(DataConfig(), [RoundConfig(30)], BudgetConfig(0.1), made())
    rows = np.eye(4, dtype=np.float32)
    records, spec = Records(rows, np.arange(4), np.arange(4)), ExtractorSpec("raw", (4,), 4)
    teacher = teach(tmp_path, config.plan(), records, spec)
    queries = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    answers = teacher.answer(Queries(queries))
    # 30 fair draws of four classes are all alike with probability 4^-29.
    assert len(set(answers.labels.tolist()) & {0, 1, 2, 3}) > 1
    assert answers.receipt.charged == {"guess": 30}
    finding = audit(tmp_path / LEDGER)
    assert (finding.problems, finding.epsilon) == ([], 0.0)
    assert finding.certificates["pure_added"] == 0.001  # 30 times 1e-6, rounded up
    monkeypatch.delitem(audited_mechanisms.KINDS, "coin")
    assert "unknown kind: 'coin'" in audit(tmp_path / LEDGER).problems[0]
