"""Report and model card of a run folder that the real writers made: what they say, what they must
not say, the same bytes every time."""

import json
import re
import sqlite3
from base64 import b64decode
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from labelwall.experiment.config.settings import to_yaml
from labelwall.experiment.report import report
from labelwall.experiment.report.finished import read_run
from labelwall.experiment.report.report import scores_by_name, write_report
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.teacher.accounting import accountant
from labelwall.teacher.accounting.conversion import round_up
from labelwall.wall.datasets.config import DataConfig
from labelwall.wall.errors import LabelwallError, MissingData
from labelwall.wall.label_kinds import ClassLabels
from labelwall.wall.messages import Outcome
from tests.experiment.report.finished_run import (
    ASKED,
    change,
    config_of,
    finished_run,
    page_in,
    page_of,
)

CARD = "MODEL_CARD.md"


def test_the_headline_and_the_table_say_what_the_run_found(rendered: Path) -> None:
    text = page_in(rendered).text
    epsilon = accountant.certified_epsilon(config_of(rendered).plan())
    shown = float(re.search(r"ε = ([\d.]+) certified", text)[1])
    assert epsilon <= shown <= epsilon + 0.001  # rounded up, never down
    assert "88.75% of the public test split right" in text
    assert "δ = 1e-05" in text
    assert "1 hog 12 8 4 0 93.75% none 81.25% 0.050" in text
    # The 15th answer was the last one paid for
    assert "2 small_cnn 12 7 4 1 unknown none 88.75% 0.100" in text
    assert "readings, not guarantees" in text
    assert "screen 0 24 24 24" in text
    assert "aggregate 0 15 15 15" in text
    assert "UNSAFE" not in text
    assert "DOES NOT CERTIFY" not in text
    for name, bound in accountant.certificates(config_of(rendered).plan()).items():
        assert f"{name} {round_up(bound.epsilon):.3f}" in text


def test_the_page_is_whole_by_itself_and_shows_nothing_of_the_custodians(rendered: Path) -> None:
    page = page_in(rendered)
    assert page.links == ["MODEL_CARD.md"]  # beside it, and fetched by a click alone
    assert page.scripts == 0
    assert page.images
    assert all(
        image.startswith(("data:image/svg+xml;base64,", "data:image/png;base64,"))
        for image in page.images
    )
    html = (rendered / "report.html").read_text()
    assert not [mark for mark in ("http", "url(", "@import", "<b>owl</b>") if mark in html]
    assert "<b>owl</b>" in page.text  # a name is text
    assert "of-the-custodian" in (rendered / "config.yaml").read_text()
    assert "of-the-custodian" not in page.text
    # Nor where the arrays are: private ones lie in the same file
    assert "not shown" in page.text
    model_card = (rendered / CARD).read_text()
    assert "of-the-custodian" not in model_card
    assert not [text for text in (page.text, model_card) if str(rendered.parent) in text]
    assert "| &lt;b&gt;owl&lt;/b&gt; | 3 | 100.00% |" in model_card


def test_classes_and_calibration_are_shown(rendered: Path) -> None:
    page = page_in(rendered)
    shares = dict.fromkeys(("cat", "$\\dog 犬", "<b>owl</b>"), "100.00%") | {"$\\dog 犬": "66.67%"}
    for name, share in shares.items():
        assert f"{name} 3 {share}" in page.text
    assert "over 15 bins: 4.21%" in page.text


def test_of_many_classes_the_worst_are_shown() -> None:
    counts = np.diag(np.arange(report.MOST_NAMES + 5))
    counts[:, -1] += 1
    space = ClassLabels.of(len(counts))
    scores = report.worst(scores_by_name(counts, space))
    assert len(scores) == report.MOST_NAMES
    assert scores[0] == ("0", 1, 0.0)
    assert scores[-1][0] == str(report.MOST_NAMES - 1)


@pytest.mark.parametrize("summary", [{}, {"unsafe": False, "epsilon": 0.1}])
def test_an_unsafe_run_says_so_first_and_certifies_nothing(tmp_path: Path, summary: dict) -> None:
    run_dir = finished_run(tmp_path, unsafe=True)
    change(run_dir / "summary.json", **summary)
    text = page_of(run_dir).text
    assert text.index("UNSAFE") < text.index("of the public test split")
    assert "ε = ∞ nothing certified" in text
    assert "as likely, or as unlikely" not in text
    assert not re.search(r"[\d.]+ certified ", text)
    model_card = (run_dir / CARD).read_text()
    assert "UNSAFE" in model_card
    assert "Nothing: see above." in model_card
    assert "certified, rounded up" not in model_card


def test_examples_are_the_public_images_that_were_asked(rendered: Path) -> None:
    shown = [image for image in page_in(rendered).images if image.startswith("data:image/png")]
    pixels = [np.array(Image.open(BytesIO(b64decode(image.split(",")[1])))) for image in shown]
    public = np.load(rendered.parent / "data.npz")["public_x"]
    for number, images in ((1, pixels[:ASKED]), (2, pixels[ASKED:])):
        rows, _, outcomes = RunFolder(rendered).load_answers(number)
        expected = [*rows[outcomes == Outcome.ANSWERED], *rows[outcomes == Outcome.ABSTAINED]]
        assert all((a == public[row]).all() for a, row in zip(images, expected, strict=number == 1))
    assert len(pixels) == 2 * ASKED - 1  # all but the one past the cap


def test_it_opens_public_rows_and_the_run_folder_alone(
    tmp_path: Path, image_folders: dict[str, str], opened
) -> None:
    run_dir = finished_run(tmp_path)
    config = replace(
        read_run(run_dir).config, data=DataConfig(source="folder", image_size=8, **image_folders)
    )
    (run_dir / "config.yaml").write_text(to_yaml(config))
    for number in (1, 2):
        rows, labels, outcomes = RunFolder(run_dir).load_answers(number)
        RunFolder(run_dir).save_answers(number, rows % 12, np.minimum(labels, 1), outcomes)
    with opened() as paths:
        page = page_of(run_dir)
    assert any(path.startswith(image_folders["public"]) for path in paths)
    assert sum(image.startswith("data:image/png") for image in page.images) > 10
    assert not [path for path in paths if path.startswith(image_folders["private"])]


@pytest.mark.parametrize("how", ["gone", "vectors", "fewer rows"])
def test_without_public_images_the_rest_still_stands(tmp_path: Path, how: str) -> None:
    run_dir = finished_run(tmp_path, images=how != "vectors")
    if how == "gone":
        (tmp_path / "data.npz").unlink()
    if how == "fewer rows":
        arrays = dict(np.load(tmp_path / "data.npz"))
        np.savez(
            tmp_path / "data.npz",
            **arrays | {"public_x": arrays["public_x"][:2], "public_y": arrays["public_y"][:2]},
        )
    page = page_of(run_dir)
    assert "Public images" not in page.text
    assert "88.75%" in page.text


@pytest.mark.parametrize(
    ("file", "content", "mentioned"),
    [
        *(
            (file, None, Path(file).name)
            for file in (
                *("summary.json", "config.yaml", "ledger.sqlite"),
                *("round_2/metrics.json", "round_1/answers.npz"),
            )
        ),
        ("summary.json", "{", "damaged"),
        ("candidates.json", "{}", "is damaged"),
        ("round_1/metrics.json", "{}", "is damaged .KeyError"),
    ],
)
def test_an_unfinished_or_damaged_run_is_refused_in_one_line(
    copied: Path, file: str, content: str | None, mentioned: str
) -> None:
    if content is None:
        (copied / file).unlink()
    else:
        (copied / file).write_text(content)
    before = sorted(copied.rglob("*"))
    error = MissingData if content is None else LabelwallError
    with pytest.raises(error, match=mentioned) as caught:
        write_report(copied)
    assert "\n" not in str(caught.value)
    assert sorted(copied.rglob("*")) == before
    with pytest.raises(MissingData, match="run_dir"):
        write_report(copied / "nothing")
    assert not (copied / "nothing").exists()


def test_an_edited_ledger_or_summary_certifies_nothing(copied: Path) -> None:
    epsilon = json.loads((copied / "summary.json").read_text())["epsilon"]
    change(copied / "summary.json", epsilon=0.01)
    assert "summary.json claims epsilon 0.01" in page_of(copied).text
    change(copied / "summary.json", epsilon=epsilon)
    with sqlite3.connect(copied / "ledger.sqlite") as connection:
        connection.execute("UPDATE entries SET body = replace(body, ':1', ':0') WHERE seq = 3")
    text = page_of(copied).text
    assert "THE LEDGER DOES NOT CERTIFY THIS RUN" in text
    assert "ε = ∞ nothing certified" in text


def test_the_same_folder_gives_the_same_bytes(rendered: Path, copied: Path) -> None:
    first = [(rendered / name).read_bytes() for name in ("report.html", CARD)]
    write_report(rendered)
    assert [(rendered / name).read_bytes() for name in ("report.html", CARD)] == first
    change(copied / "round_2/metrics.json", student_accuracy=0.8876)
    assert write_report(copied).read_bytes() != first[0]


def test_a_kept_round_and_a_choice_by_rehearsals_are_named(copied: Path) -> None:
    """With an estimate, and the rows of a rehearsal: those of the test split make its accuracy
    optimistic. Other runs say nothing of the kind."""
    assert not [word for word in ("Kept round", "rehearsals") if word in page_of(copied).text]
    for number, right in ((1, 0.58), (2, 0.29)):
        estimate = {"right": right, "error": 0.01, "by": "noisy counts"}
        change(copied / f"round_{number}/metrics.json", estimate=estimate)
    change(copied / "summary.json", best_round=1)
    source = "300 rows of the test split: accuracy on this split is slightly optimistic"
    choice = {"reason": "private_linear is chosen: 64.0% expected.", "source": source}
    RunFolder(copied).candidates.write_text(json.dumps({**choice, "candidates": []}))
    text = page_of(copied).text
    for words in ("Kept round 1.", "about 58% right by noisy counts 81.25%", *choice.values()):
        assert words in text
    assert source in " ".join((copied / CARD).read_text().split())


def test_the_card_has_the_hubs_front_matter_the_guarantee_and_how_to_check_it(
    rendered: Path,
) -> None:
    written = (rendered / CARD).read_text()
    front, text = yaml.safe_load(written.split("---\n")[1]), " ".join(written.split())
    assert (front["library_name"], front["pipeline_tag"]) == ("labelwall", "image-classification")
    (result,) = front["model-index"][0]["results"]
    assert result["dataset"]["name"] == "arrays"
    assert {"type": "accuracy", "value": 0.8875} in result["metrics"]
    assert {"type": "expected_calibration_error", "value": 0.0421} in result["metrics"]
    plan = config_of(rendered).plan()
    epsilon = round_up(accountant.certified_epsilon(plan), 3)
    head = json.loads((rendered / "summary.json").read_text())["ledger_head"]
    for sentence in (
        f"| epsilon | {epsilon:.3f}, certified, rounded up |",
        "| delta | 1e-05 |",
        f"| certificate | `{accountant.smallest_certified(plan)}` |",
        "one private record, which is one row",
        f"labelwall audit ledger.sqlite --expect_head {head}",
        "| 1 | private\\_knn | hog | 12 | 8 | 81.25% |",
        "`arrays`, 40 public rows. Finished on 2026-11-23.",
        "In all, 15 of 24 queries were answered.",
        "error is 4.21% (15 bins, test split)",
    ):
        assert sentence in text


def test_no_word_of_a_run_folder_is_markup(rendered: Path) -> None:
    """The features come from files that a stranger may have written."""
    run = read_run(rendered)
    odd = [{**metrics, "extractor": "x` | <b>y</b>"} for metrics in run.rounds]
    text = report.card(replace(run, rounds=odd))
    assert "<b>y" not in text
    assert r"x\` \| &lt;b&gt;y&lt;/b&gt; | 12 |" in text
    assert report.cell("a | b\n# c *d* `e`") == r"a \| b # c \*d\* \`e\`"
