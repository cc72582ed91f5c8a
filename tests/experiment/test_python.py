"""What a reader of a notebook or a script meets: names, folders, how things show themselves, what
`predict` takes, and messages that speak of Python."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pytorch_lightning.loggers.logger import DummyLogger
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch.utils.data import TensorDataset

import labelwall as lw
from labelwall.experiment.whole_run import in_python
from labelwall.wall.errors import InvalidInput, LedgerMismatch
from tests.experiment import tiny
from tests.experiment.test_api import NAMES, QUICK, SPLITS, arrays, fit, frame, named
from tests.student import students


def test_completion_offers_the_public_names_alone() -> None:
    assert dir(lw) == sorted(lw.__all__)
    assert (Path(lw.__file__).parent / "py.typed").is_file()


def test_any_setting_of_data_can_be_given() -> None:
    (x, y), (public, _), (test, truth) = SPLITS.values()
    ids = np.arange(len(x)) // 2
    data = lw.Data((frame(x).assign(pid=ids), y), frame(public), (frame(test), truth))
    more = {**QUICK, "data": {"person": "pid"}, "privacy": {"unit": "person"}, "quiet": True}
    assert lw.plan(data, 8.0, **more).fields["unit"] == "person"
    model = lw.fit(data, 8.0, run_dir="run", custody="custody", **more)
    assert model.summary.unit == "person"
    with pytest.raises(InvalidInput, match=r"`data\.keep` must be columns"):
        lw.plan(data, 8.0, data={"keep": ["absent"]}, quiet=True, **QUICK)


@pytest.mark.usefixtures("one_budget")
def test_without_a_folder_the_budget_of_one_object_is_one(
    capsys, tmp_path_factory, monkeypatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("temporary")))
    data = arrays()
    more: dict[str, Any] = {**QUICK, "quiet": True}
    model = lw.fit(data, 8.0, **more)
    said = capsys.readouterr().err
    assert str(model.path) in said
    assert "another custody of the same rows is another budget" in said
    assert data.scratch.stat().st_mode & 0o077 == 0
    head = lw.audit(model.path).head
    assert lw.audit(lw.fit(data, 8.0, **more).path).head == head
    with pytest.raises(LedgerMismatch, match=r"epsilon=8 delta=1e-05\. Another custody opens"):
        lw.fit(data, 4.0, **more)
    assert not list(Path.cwd().iterdir())


def test_what_is_shown_is_public() -> None:
    data = named()
    for shown in (repr(data), data._repr_html_()):
        assert "40 rows" in shown
        assert "30 rows" in shown
        assert "ant, bee, cat" in shown
        assert "200" not in shown  # the number of private rows
    model = fit(data, custody="custody")
    assert "test accuracy" in model._repr_html_()
    name, share = model.summary.baselines.frequent
    counts = np.bincount(SPLITS["test"][1])
    assert (name, share) == (NAMES[counts.argmax()], pytest.approx(counts.max() / 30))
    assert f"always {name!r}" in (model.path / "MODEL_CARD.md").read_text()
    assert f"epsilon={model.epsilon_}" in repr(model)
    price = lw.plan(data, 8.0, quiet=True, **QUICK)._repr_html_()
    assert price.startswith("<table>")
    assert "white-space: pre;" in price


@pytest.mark.parametrize("kind", ["bool", "int"])
def test_an_exported_folder_is_loaded_with_its_labels_as_they_were(kind: str) -> None:
    (x, y), (public, _), (test, truth) = SPLITS.values()
    as_given = {"bool": lambda labels: labels == 1, "int": lambda labels: labels + 1}[kind]
    data = lw.Data((x, as_given(y)), public, (test, as_given(truth)))
    model = fit(data, custody="custody")
    model.save_pretrained("hub")
    again = lw.load("hub")
    assert again.classes_.dtype.kind == {"bool": "b", "int": "i"}[kind]
    np.testing.assert_array_equal(again.predict(test), model.predict(test))
    assert (again.predict(test) == as_given(truth)).mean() == model.score(test, as_given(truth))


def test_words_for_truth_in_a_file_are_truth_values() -> None:
    """As pandas reads them, so that predictions compare with what it read."""
    for seed, name in enumerate(("private", "public", "test")):
        x, y = tiny.rows(200, seed)
        frame(x).assign(label=y > 0).to_csv(f"{name}.csv", index=False)
    model = lw.fit(lw.Data("private.csv", "public.csv", "test.csv"), 8.0, quiet=True, **QUICK)
    tests = pd.read_csv("test.csv")
    assert model.classes_.dtype == bool
    predicted = model.predict(tests.drop(columns="label"))
    assert (predicted == tests["label"]).mean() == model.score(tests, tests["label"]) > 0.5


class Pressed(DummyLogger):
    """Ctrl-C in the middle of a training."""

    def log_metrics(self, *_: object, **__: object) -> None:
        raise KeyboardInterrupt


def test_ctrl_c_during_training_is_an_interrupt_and_the_same_call_continues() -> None:
    heard = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit(arrays(), custody="custody", loggers=[Pressed()])
    assert signal.getsignal(signal.SIGINT) is heard
    charged = lw.audit("custody").charged
    assert sum(charged.values()) > 0
    after = lw.audit(fit(arrays(), custody="custody").path).charged  # and the score
    assert {name: after[name] for name in charged} == charged


def test_errors_name_arguments_as_python_does() -> None:
    said = "Continue with --epsilon 1 --delta 1e-05, or another --custodian_dir; the same command."
    spoken = "Continue with epsilon=1 delta=1e-05, or another custody; the same call."
    assert in_python(said) == spoken


def test_a_model_is_measured_by_class_and_by_group(tmp_path: Path) -> None:
    """``evaluate`` measures what ``predict_proba`` says; scikit-learn's functions agree."""
    names = ("cat", "dog, small", "emu")  # of this student
    (tmp_path / "student.safetensors").write_bytes(students.content(shape=students.VECTOR))
    model = lw.load(tmp_path / "student.safetensors")
    x, y = tiny.rows(60, 5)
    truth = np.array(names)[y]
    found = model.evaluate(x, truth, groups=np.where(np.arange(60) < 40, "old", "young"))
    assert found.measures.accuracy == model.score(x, truth)
    expected = roc_auc_score(y, model.predict_proba(x), multi_class="ovr")
    assert found.measures.auroc == pytest.approx(expected, abs=1e-9)
    balanced = balanced_accuracy_score(truth, model.predict(x))
    assert found.measures.balanced_accuracy == pytest.approx(balanced, abs=1e-9)
    assert {name: one.rows for name, one in found.groups.items()} == {"old": 40, "young": 20}
    assert [*found.frame().index] == ["all", "old", "young", *names]
    assert "old" in found._repr_html_()
    with pytest.raises(InvalidInput, match="60 names, one for each row"):
        model.evaluate(x, truth, groups=["old"])
    with pytest.raises(InvalidInput, match="labels of cat"):
        model.evaluate(x, np.where(y == 0, "purple", truth))
    for rows in (TensorDataset(torch.zeros(2, x.shape[1])), [[1.0], [1.0, 2.0]], None):
        with pytest.raises(InvalidInput):
            model.predict(rows)
