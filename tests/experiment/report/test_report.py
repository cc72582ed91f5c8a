"""The report and model card of a real run: what they say and must not say; the same bytes."""

import json
import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from labelwall.experiment.config.settings import to_yaml
from labelwall.experiment.report import report
from labelwall.experiment.report.report import read_run, scores_by_name, write_report
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.teacher.accounting import accountant
from labelwall.teacher.accounting.conversion import round_up
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.errors import LabelwallError, MissingData
from labelwall.wall.label_kinds import ClassLabels
from tests.experiment.report.finished_run import CLASSES, change, change_round, page_in, page_of

CARD = "MODEL_CARD.md"


def percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.2%}"


def test_the_headline_and_the_table_say_what_the_run_found(rendered: Path) -> None:
    text, run = page_in(rendered).text, read_run(rendered)
    plan = run.config.plan()
    epsilon = accountant.certified_epsilon(plan)
    shown = float(re.search(r"ε = ([\d.]+) certified", text)[1])
    assert epsilon <= shown <= epsilon + 0.001  # rounded up, never down
    assert f"{percent(run.summary.test_accuracy)} of the public test split right" in text
    assert "δ = 1e-05" in text
    for number, found in enumerate(run.summary.rounds):
        extractor = ("hog", "small_cnn")[number]
        counts = f"{found.answered} {found.abstained} {found.cap_reached}"
        right = f"{percent(found.label_accuracy)} none {percent(found.student_accuracy)}"
        line = f"{number + 1} {extractor} 12 {counts} {right} {found.epsilon_reading:.3f}"
        assert line in text
        assert found.abstained > 0
    assert run.summary.rounds[1].cap_reached > 0  # the 10th answer was the last one paid for
    assert "readings, not guarantees" in text
    assert "screen 0 24 24 24" in text
    assert "aggregate 0 10 10 10" in text
    assert "UNSAFE" not in text
    assert "DOES NOT CERTIFY" not in text
    for name, bound in accountant.certificates(plan).items():
        assert f"{name} {round_up(bound.epsilon):.3f}" in text


def test_the_card_says_what_the_student_is(rendered: Path) -> None:
    """The network that the configuration names, unless the released classifier was kept."""
    run = read_run(rendered)
    trained = report.card(run)
    assert "student is `small_cnn`, trained with the objective `supervised` for 5 steps" in trained
    released = report.card(replace(run, info=replace(run.info, backbone="released/hog")))
    assert "linear classifier that the released sums gave, of the features small" in released
    assert "trained with the objective" not in released
    tags = [yaml.safe_load(text.split("---")[1])["tags"][-1] for text in (trained, released)]
    assert tags == ["small_cnn", "linear"]


@pytest.mark.parametrize(
    ("public", "name"),
    [
        ("bank/public.csv", "bank"),
        ("credit.csv", "credit"),
        ("custody/rows/public.parquet", "table"),  # of rows in memory
        ("box", "table"),
        ("narrows.csv", "narrows"),
    ],
)
def test_a_data_set_is_called_as_its_public_rows_are(public: str, name: str) -> None:
    assert report.data_name(DataConfig(source="table", private="p.csv", public=public)) == name


def test_the_page_is_whole_by_itself_and_shows_nothing_of_the_custodians(rendered: Path) -> None:
    page = page_in(rendered)
    assert page.links == ["MODEL_CARD.md"]  # beside it, and fetched by a click alone
    assert page.scripts == 0
    inline = "data:image/jpeg;base64,"
    assert {image[: len(inline)] for image in page.images} == {inline}
    html = re.sub('base64,[^"]+', "", (rendered / "report.html").read_text())
    assert not [mark for mark in ("http", "url(", "@import", "<b>owl</b>") if mark in html]
    assert "<b>owl</b>" in page.text  # a name is text
    assert "of-the-custodian" in (rendered / "config.yaml").read_text()
    assert "of-the-custodian" not in page.text
    # Nor where the arrays are: private ones lie in the same file
    assert "not shown" in page.text
    model_card = (rendered / CARD).read_text()
    assert "of-the-custodian" not in model_card
    assert not [text for text in (page.text, model_card) if str(rendered.parent) in text]
    assert "| &lt;b&gt;owl&lt;/b&gt; | 3 | " in model_card


def test_classes_and_calibration_are_shown(rendered: Path) -> None:
    text, found = page_in(rendered).text, read_run(rendered).summary.rounds[-1]
    for place, name in enumerate(CLASSES):
        assert f"{name} 3 {percent(found.confusion[place][place] / 3)}" in text
    assert f"over 15 bins: {percent(found.calibration_error)}" in text


def test_of_many_classes_the_worst_are_shown() -> None:
    counts = np.diag(np.arange(report.MOST_NAMES + 5))
    counts[:, -1] += 1
    space = ClassLabels.of(len(counts))
    scores = report.worst(scores_by_name(counts, space), lambda named: named[2])
    assert len(scores) == report.MOST_NAMES
    assert scores[0] == ("0", 1, 0.0)
    assert scores[-1][0] == str(report.MOST_NAMES - 1)


@pytest.mark.parametrize("rendered", [True], indirect=True)
@pytest.mark.parametrize("summary", [{}, {"unsafe": False, "epsilon": 0.1}])
def test_an_unsafe_run_says_so_first_and_certifies_nothing(copied: Path, summary: dict) -> None:
    change(copied / "summary.json", **summary)
    text = page_of(copied).text
    assert text.index("UNSAFE") < text.index("of the public test split")
    assert "ε = ∞ nothing certified" in text
    assert "as likely, or as unlikely" not in text
    assert not re.search(r"[\d.]+ certified ", text)
    model_card = (copied / CARD).read_text()
    assert "UNSAFE" in model_card
    assert "Nothing: see above." in model_card
    assert "certified, rounded up" not in model_card


def test_it_opens_the_run_folder_alone(copied: Path, image_folders: dict[str, str], opened) -> None:
    config = replace(
        read_run(copied).config, data=DataConfig(source="folder", image_size=8, **image_folders)
    )
    (copied / "config.yaml").write_text(to_yaml(config))
    with opened() as paths:
        page_of(copied)
    assert any(path.startswith(str(copied)) for path in paths)
    assert not [path for path in paths if path.startswith(tuple(image_folders.values()))]


@pytest.mark.parametrize(
    ("file", "content", "mentioned"),
    [
        *(
            (file, None, Path(file).name)
            for file in ("summary.json", "config.yaml", "ledger.sqlite")
        ),
        ("summary.json", "{", "damaged"),
        ("candidates.json", "{}", "is damaged"),
        ("summary.json", "{}", "is damaged. Delete it"),
    ],
)
def test_an_unfinished_or_damaged_run_is_refused_in_one_line(
    copied, file, content, mentioned
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
    change_round(copied, 2, student_accuracy=0.8876, label_accuracy=None)
    assert "unknown none 88.76%" in page_of(copied).text


def test_a_kept_round_and_a_choice_by_rehearsals_are_named(copied: Path) -> None:
    """Other runs say nothing of the kind."""
    assert not [word for word in ("Kept round", "rehearsals") if word in page_of(copied).text]
    for number, right in ((1, 0.58), (2, 0.29)):
        estimate = {"right": right, "error": 0.01, "by": "noisy counts"}
        change_round(copied, number, estimate=estimate, student_accuracy=0.8125)
    change(copied / "summary.json", best_round=1)
    source = "300 rows of the test split: accuracy on this split is slightly optimistic"
    choice = {"reason": "private_linear is chosen: 64.0% expected.", "source": source}
    RunFolder(copied).candidates.write_text(json.dumps({**choice, "candidates": []}))
    text = page_of(copied).text
    for words in ("Kept round 1.", "about 58% right by noisy counts 81.25%", *choice.values()):
        assert words in text
    assert source in " ".join((copied / CARD).read_text().split())


def test_the_card_has_the_hubs_front_matter_the_guarantee_and_how_to_check_it(rendered) -> None:
    written = (rendered / CARD).read_text()
    front, text = yaml.safe_load(written.split("---\n")[1]), " ".join(written.split())
    run = read_run(rendered)
    first, last = run.summary.rounds
    assert (front["library_name"], front["pipeline_tag"]) == ("labelwall", "image-classification")
    (result,) = front["model-index"][0]["results"]
    assert result["dataset"]["name"] == "arrays"
    assert {"type": "accuracy", "value": round(last.student_accuracy, 6)} in result["metrics"]
    calibration = {
        "type": "expected_calibration_error",
        "value": round(last.calibration_error, 6),
    }
    assert calibration in result["metrics"]
    plan = run.config.plan()
    epsilon = round_up(accountant.certified_epsilon(plan), 3)
    for sentence in (
        f"| epsilon | {epsilon:.3f}, certified, rounded up |",
        "| delta | 1e-05 |",
        f"| certificate | `{accountant.smallest_certified(plan)}` |",
        "one private record, which is one row",
        f"labelwall audit ledger.sqlite --expect_head {run.summary.ledger_head}",
        f"| 1 | private\\_knn | hog | 12 | {first.answered} | {percent(first.student_accuracy)} |",
        f"Data set: arrays, 40 public rows. Finished on {run.summary.date}.",
        "In all, 10 of 24 queries were answered.",
        f"error is {percent(last.calibration_error)} (15 bins, test split)",
    ):
        assert sentence in text


def test_no_word_of_a_run_folder_is_markup(rendered: Path) -> None:
    """The features come from files that a stranger may have written."""
    run = read_run(rendered)
    odd = tuple(replace(r, extractor="x` | <b>y</b>") for r in run.summary.rounds)
    text = report.card(replace(run, summary=replace(run.summary, rounds=odd)))
    assert "<b>y" not in text
    assert r"x\` \| &lt;b&gt;y&lt;/b&gt; | 12 |" in text
    assert report.cell("a | b\n# c *d* `e`") == r"a \| b # c \*d\* \`e\`"
