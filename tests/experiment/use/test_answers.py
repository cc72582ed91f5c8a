"""An answer for each row, in the order and of the type in which rows and labels were given."""

import os
import resource
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import labelwall as lw
from labelwall import pipeline
from labelwall.student.student_model import load_student
from labelwall.wall.errors import InvalidInput
from tests.experiment.checks import check_one_error
from tests.experiment.test_api import QUICK, SPLITS, frame
from tests.experiment.use.test_classify import table


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> lw.Model:
    """Of a table with the labels 1, 2 and 3."""
    folder = tmp_path_factory.mktemp("answers")
    splits = (frame(x).assign(label=y + 1) for x, y in SPLITS.values())
    own = {"run_dir": folder / "run", "custody": folder / "custody", "quiet": True, **QUICK}
    return lw.fit(lw.Data(*splits), 8.0, **own)


def test_labels_come_back_as_they_were(model: lw.Model) -> None:
    x, y = SPLITS["test"]
    for known in (model, lw.load(model.path)):
        assert known.classes_.tolist() == [1, 2, 3]
        predicted = known.predict(frame(x))
        right = float((predicted == y + 1).mean())
        assert right > 0.5
        for labels in (
            y + 1,
            (y + 1).tolist(),
            list(map(str, y + 1)),
            torch.tensor(y + 1),
            y + 1.0,
        ):
            assert known.score(frame(x), labels) == right
    for labels, text in (([*y[1:] + 1, 9], "'9'"), ([*y[1:] + 1, None], "''"), (y[1:], "29,")):
        with pytest.raises(InvalidInput, match=f"`labels` must be.*{text}"):
            model.score(frame(x), labels)


@pytest.mark.parametrize("kind", ["bool", "float", "str"])
def test_labels_of_each_type_come_back(kind: str) -> None:
    (x, y), (u, _), (t, truth) = SPLITS.values()
    made = {"bool": lambda y: y > 0, "float": lambda y: y * 1.0, "str": lambda y: y.astype(str)}
    labels = made[kind](truth)
    data = lw.Data((x, made[kind](y)), u, (t, labels))
    model = lw.fit(data, 8.0, run_dir="run", custody="custody", quiet=True, **QUICK)
    predicted = model.predict(t)
    assert predicted.dtype.kind == labels.dtype.kind
    assert set(predicted) <= set(labels.tolist())
    assert model.score(t, labels) == (predicted == labels).mean() > 0.5
    again = lw.load("run").classes_
    assert (again.dtype, again.tolist()) == (model.classes_.dtype, model.classes_.tolist())


def test_rows_in_several_forms(model: lw.Model, images: Path) -> None:
    x, _ = SPLITS["test"]
    raw = x * np.ones(1)
    expected = model.predict(raw)
    for rows in (raw.tolist(), list(raw), torch.tensor(raw), frame(raw), frame(raw).astype(object)):
        np.testing.assert_array_equal(model.predict(rows), expected)
    seen, paths = lw.load(images / "out"), sorted((images / "test").rglob("*.png"))
    pictures = [Image.open(path) for path in paths]
    np.testing.assert_array_equal(seen.predict_proba(pictures), seen.predict_proba(paths))
    with pytest.raises(InvalidInput, match="images"):
        model.predict(pictures)
    raw[4, 2] = np.nan
    with pytest.raises(InvalidInput, match="in row 4"):
        model.predict(raw)


def test_a_record_may_have_line_breaks_and_one_that_does_not_fit_has_no_answer(
    model: lw.Model, tmp_path: Path, capsys
) -> None:
    rows = frame(SPLITS["test"][0]).assign(note="x")
    rows.loc[3, "note"] = 'two\r\nlines, "quoted"\n'
    rows.loc[5, "note"] = "z" * 200_000
    rows.to_csv(tmp_path / "whole.csv", index=False)
    lines = (tmp_path / "whole.csv").read_bytes().split(b"\n")
    lines[1] += b",more"
    (tmp_path / "a.csv").write_bytes(b"\n".join([*lines[:1], b"", *lines[1:]]))
    command = ["classify", "--student", str(model.path), "--vectors", str(tmp_path / "a.csv")]
    assert pipeline.main([*command, "--out", str(tmp_path / "out.csv")]) == 0
    assert "29 labelled, 1 unreadable" in capsys.readouterr().out
    answers = [line["label"] for line in table(tmp_path / "out.csv")]
    assert answers == ["", *map(str, model.predict(rows)[1:])]
    with pytest.raises(InvalidInput, match="in row 0"):
        model.predict(tmp_path / "a.csv")
    np.testing.assert_array_equal(model.predict(tmp_path / "whole.csv"), model.predict(rows))


@pytest.mark.parametrize("form", ["npy", "npz"])
def test_a_row_that_is_not_finite_has_no_answer(vectors, tmp_path, monkeypatch, form) -> None:
    monkeypatch.setattr("labelwall.experiment.use.classify.BLOCK", 4)
    x = np.load(vectors / "data.npz")["test_x"].astype(np.float64)
    expected = load_student(vectors / "out").predict(x).tolist()
    x[[0, 5, 6]] = np.array([np.nan, np.inf, 1e300])[:, None]
    np.save(tmp_path / "x.npy", np.asfortranarray(x))
    np.savez(tmp_path / "x.npz", x=x)
    command = ["classify", "--student", str(vectors / "out"), "--out", str(tmp_path / "a.csv")]
    assert pipeline.main([*command, "--vectors", str(tmp_path / f"x.{form}")]) == 0
    answers = [line["label"] for line in table(tmp_path / "a.csv")]
    assert [row for row, label in enumerate(answers) if not label] == [0, 5, 6]
    assert [int(label or 9) for label in answers] == [
        9 if row in (0, 5, 6) else label for row, label in enumerate(expected)
    ]
    np.save(tmp_path / "x.npy", x[:1])
    np.savez(tmp_path / "x.npz", x=x[:1])
    assert pipeline.main([*command, "--vectors", str(tmp_path / f"x.{form}")]) == 2


def hostile(folder: Path) -> None:
    os.mkfifo(folder / "pipe.csv")
    os.mkfifo(folder / "pipe.npz")
    os.mkfifo(folder / "pipe.npy")
    (folder / "zero.csv").symlink_to("/dev/zero")
    names = ",".join(f"c{number}" for number in range(1_000_000))
    (folder / "wide.csv").write_text(f"{names}\n" + f"{'1,' * 999_999}1\n" * 3)
    np.save(folder / "wide.npy", np.zeros((3, 1_000_000), np.float32))
    with (
        zipfile.ZipFile(folder / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w", force_zip64=True) as member,
    ):
        header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 24, 8)}
        np.lib.format.write_array_header_1_0(member, header)
        for _ in range(1 << 9):
            member.write(bytes(1 << 20))


def test_files_that_are_none_or_too_large_are_one_line_at_once(
    model: lw.Model, vectors: Path, tmp_path: Path, capsys
) -> None:
    hostile(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in sorted(path.name for path in tmp_path.iterdir()):
        student = model.path if name.endswith("csv") else vectors / "out"
        command = ["classify", "--student", str(student), "--vectors", str(tmp_path / name)]
        check_one_error([*command, "--out", str(tmp_path / "out.csv")], "must be", capsys)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 19  # kB
