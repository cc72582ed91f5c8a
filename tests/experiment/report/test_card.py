"""The model card: what it promises, what it must not say, the same bytes every time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from labelwall.experiment.report.card import card, write_card
from labelwall.experiment.report.report import cell, read_run
from labelwall.teacher.accounting.accountant import certified_epsilon, smallest_certified
from labelwall.teacher.accounting.conversion import round_up
from tests.experiment.report.finished_run import config_of, finished_run


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run with its card."""
    run_dir = finished_run(tmp_path_factory.mktemp("card"))
    write_card(run_dir)
    return run_dir


def text_of(run_dir: Path) -> str:
    return " ".join((run_dir / "MODEL_CARD.md").read_text().split())


def test_the_front_matter_is_the_hubs(written: Path) -> None:
    front = yaml.safe_load((written / "MODEL_CARD.md").read_text().split("---\n")[1])
    assert front["library_name"] == "labelwall"
    assert front["pipeline_tag"] == "image-classification"
    assert "differential-privacy" in front["tags"]
    (result,) = front["model-index"][0]["results"]
    assert result["dataset"]["name"] == "arrays"
    assert {"type": "accuracy", "value": 0.8875} in result["metrics"]
    assert {"type": "expected_calibration_error", "value": 0.0421} in result["metrics"]


def test_the_guarantee_how_to_check_it_and_how_good_it_is(written: Path) -> None:
    text, plan = text_of(written), config_of(written).plan()
    head = json.loads((written / "summary.json").read_text())["ledger_head"]
    for sentence in (
        f"| epsilon | {round_up(certified_epsilon(plan), 3):.3f}, certified, rounded up |",
        "| delta | 1e-05 |",
        f"| certificate | `{smallest_certified(plan)}` |",
        "one private record, which is one row",
        f"labelwall audit ledger.sqlite --expect_head {head}",
        "| 1 | private\\_knn | hog | 12 | 8 | 81.25% |",
        "`arrays`, 40 public rows. Finished on 2026-11-23.",
        "In all, 15 of 24 queries were answered.",
        "| cat | 3 | 100.00% |",
        "error is 4.21% (15 bins, test split)",
        "temperature of 1.75",
        "without it the error is 8.73%",
    ):
        assert sentence in text


def test_nothing_of_the_custodians_and_no_markup_of_names(written: Path) -> None:
    text = (written / "MODEL_CARD.md").read_text()
    assert "of-the-custodian" not in text
    assert str(written.parent) not in text
    assert "<b>owl" not in text
    assert "| &lt;b&gt;owl&lt;/b&gt; | 3 |" in text


def test_no_word_of_a_run_folder_is_markup(written: Path, tmp_path: Path) -> None:
    """The features and the mechanism's kind come from files that a stranger may have written."""
    run = read_run(written)
    odd = [{**metrics, "extractor": "x` | <b>y</b>"} for metrics in run.rounds]
    text = card(replace(run, rounds=odd))
    assert "<b>y" not in text
    assert r"x\` \| &lt;b&gt;y&lt;/b&gt; | 12 |" in text
    assert cell("a | b\n# c *d* `e`") == r"a \| b # c \*d\* \`e\`"


def test_the_same_folder_gives_the_same_bytes(written: Path) -> None:
    before = (written / "MODEL_CARD.md").read_bytes()
    assert write_card(written).read_bytes() == before


def test_an_unsafe_run_promises_nothing(tmp_path: Path) -> None:
    text = write_card(finished_run(tmp_path, unsafe=True)).read_text()
    assert "UNSAFE" in text
    assert "certified, rounded up" not in text
    assert "Nothing: see above." in text
