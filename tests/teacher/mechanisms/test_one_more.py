"""CONTRIBUTING.md's example of a mechanism works: configured, planned, charged, drawn, audited."""

from __future__ import annotations

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
from labelwall.teacher.ledger.auditor import results as audited_results
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.auditor.mechanisms import Known, Priced
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms import registry
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.records.sources import Records
from labelwall.teacher.teacher import Teacher
from labelwall.wall.datasets.config import DataConfig
from labelwall.wall.messages import ExtractorSpec, Outcome, Queries

PAGE = Path(__file__).parents[3] / "CONTRIBUTING.md"


def coin() -> type:
    """The class of the page's section, from its text."""
    section = PAGE.read_text().split("## Add a mechanism", 1)[1].split("\n## ", 1)[0]
    found = re.search(r"^    @dataclass.*?(?=^\S)", section, re.MULTILINE | re.DOTALL)
    assert found
    names = {
        "dataclass": dataclass,
        "Literal": Literal,
        "Mechanism": Mechanism,
        "Outcome": Outcome,
        "Release": Release,
    }
    exec(compile(textwrap.dedent(found[0]), str(PAGE), "exec", dont_inherit=True), names)
    made = names["Coin"]
    assert isinstance(made, type)
    return made


def audited_coin() -> Known:
    """The auditor's entry of the page's section, from its text."""
    section = PAGE.read_text().split("## Add a mechanism", 1)[1].split("\n## ", 1)[0]
    found = re.search(r"^    KINDS.*?(?=^\S)", section, re.MULTILINE | re.DOTALL)
    assert found
    kinds: dict[str, Known] = {}
    names = {"KINDS": kinds, "Known": Known, "Priced": Priced, "results": audited_results}
    exec(compile(textwrap.dedent(found[0]), str(PAGE), "exec", dont_inherit=True), names)
    return kinds["coin"]


def test_the_pages_mechanism_runs_from_configuration_to_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = coin()
    monkeypatch.setitem(registry.MECHANISMS, "coin", made)
    monkeypatch.setitem(audited_mechanisms.KINDS, "coin", audited_coin())
    config = Config(DataConfig(), [RoundConfig(30)], BudgetConfig(0.1), made())
    ledger = Ledger.create(
        tmp_path / "ledger.sqlite", dataset="d", plan=config.plan(), unsafe=False
    )
    rows = np.eye(4, dtype=np.float32)
    teacher = Teacher(
        lambda: Records(rows, np.arange(4), np.arange(4)), ledger, tmp_path, 4, SystemEntropy()
    )
    teacher.use_extractor(ExtractorSpec("raw", (4,), 4))
    answers = teacher.answer(
        Queries(np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32))
    )
    assert set(answers.labels.tolist()) <= {0, 1, 2, 3}
    # 30 fair draws of four classes are all alike with probability 4^-29.
    assert len(set(answers.labels.tolist())) > 1
    assert answers.receipt.charged == {"guess": 30}
    ledger.export(tmp_path / "export.sqlite")
    found = audit(tmp_path / "export.sqlite")
    assert found.problems == []
    assert found.epsilon == 0.0
    assert found.certificates["pure_added"] == 0.001  # 30 times 1e-6, rounded up
    monkeypatch.delitem(audited_mechanisms.KINDS, "coin")
    assert "unknown kind: 'coin'" in audit(tmp_path / "export.sqlite").problems[0]
