"""From data to a model in one command, without a configuration; a mistake is one line."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelwall import pipeline
from labelwall.experiment.config.options import parse
from labelwall.experiment.config.settings import load_config
from tests.experiment import tiny
from tests.experiment.checks import named, summary

QUICK = ["--student.steps", "40", "--student.doubtful_folds", "2", "--student.doubtful_steps", "5"]
QUICK += ["--threads", "1", "--workers", "1", "--quiet"]


def refused(capsys, *args: str) -> str:
    """The one line of a refused run, which left nothing behind."""
    assert pipeline.main(["run", *args, *QUICK]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert not list(Path.cwd().rglob("ledger.sqlite"))
    return line


def test_vectors_in_one_command(folder: Path, capsys) -> None:
    command = ["run", "--data", "data.npz", "--epsilon", "8", *QUICK]
    assert pipeline.main(command) == 0
    assert "runs/data/report.html" in capsys.readouterr().out
    told = summary("runs/data")
    assert 0 < told["epsilon"] <= 8
    assert (told["best_round"], len(told["rounds"])) == (1, 1)
    assert told["rounds"][0]["estimate"]["by"] == "probabilities"
    assert told["test_accuracy"] > 0.5
    assert pipeline.main(command) == 0  # the same run, which is finished
    assert pipeline.main([*command, "--seed", "5"]) == 2  # another
    assert "(seed). Choose another --run_dir" in capsys.readouterr().err
    assert sorted(path.name for path in Path("runs").iterdir()) == ["data", "data.custodian"]


def test_tables_in_one_command(folder: Path, capsys) -> None:
    files = named(tiny.write_tables(1, private=200, public=40, test=30))
    assert pipeline.main(["run", *files, "--label", "kind", "--epsilon", "8", *QUICK]) == 0
    (run_dir,) = [path for path in Path("runs").iterdir() if path.suffix == ""]
    accuracy = summary(str(run_dir))["test_accuracy"]
    assert accuracy > 0.5
    # A table is classified as it is, columns in another order; the file alone knows their scales.
    lines = [line.split(",") for line in Path("test.csv").read_text().splitlines()]
    Path("new.csv").write_text("\n".join(",".join(reversed(line)) for line in lines))
    Path("alone").mkdir()
    student = shutil.copy(run_dir / "student.safetensors", "alone")
    command = ["classify", "--student", student, "--vectors", "new.csv", "--out", "labels.csv"]

    def labels() -> list[str]:
        assert pipeline.main(command) == 0
        with Path("labels.csv").open(newline="") as file:
            return [row["label"] for row in csv.DictReader(file)]

    found = labels()
    right = np.mean([label == line[-1] for label, line in zip(found, lines[1:], strict=True)])
    assert right == pytest.approx(accuracy)
    comma = [",".join(f'"{cell}"'.replace(".", ",") for cell in line) for line in lines[1:]]
    Path("new.csv").write_text("\n".join([",".join(lines[0]), *comma]))
    labels()
    assert "new.csv, x0: 30 of 30 cells are no number, as" in capsys.readouterr().err
    Path("new.csv").write_text("x0,x1\n1,2\n")
    assert pipeline.main(command) == 2
    assert "a table with the column x2" in capsys.readouterr().err
    np.save("new.npy", [[float(cell) for cell in line[:-1]] for line in lines[1:]])
    command[command.index("new.csv")] = "new.npy"
    assert labels() == found
    assert "--vectors rows.csv" in (run_dir / "MODEL_CARD.md").read_text()
    assert "--vectors rows.csv" in (run_dir / "report.html").read_text()


def test_options_override_a_configuration(folder: Path) -> None:
    (folder / "c.yaml").write_text(
        "data: {source: mnist5k}\nrounds: [{}]\nseed: 3\nmechanism: {kind: gnmax, teachers: 9}\n"
    )
    options = ["--data", "data.npz", "--epsilon=2", "--expected_records", "90", "--seed", "4"]
    kind = ["--mechanism.kind", "reverse_knn", "--mechanism.centroids=9"]
    config, rest = parse([*options, "--config", "c.yaml", *kind])
    assert (config.data.source, config.data.path) == ("arrays", str(folder / "data.npz"))
    assert (config.budget.epsilon, config.expected_records, config.seed) == (2.0, 90, 4)
    assert (config.mechanism.kind, rest.name) == ("reverse_knn", "data")


def test_bad_folders_are_one_line(image_folders: dict[str, str], tmp_path: Path, capsys) -> None:
    public, test = (Path(image_folders[name]) for name in ("public", "test"))
    run = [*named(image_folders), "--features", "hog", "--student.backbone", "small_cnn"]
    (public / "ünïcode ☃.png").write_bytes(b"no image")
    assert "ünïcode ☃.png" in refused(capsys, *run)
    (public / "ünïcode ☃.png").unlink()
    shutil.copy(test / "cat" / "0.png", test / "loose.png")
    assert "images in class folders only" in refused(capsys, *run)
    (test / "loose.png").unlink()
    for folder in (public, test):
        (folder / "dog").rename(tmp_path / f"dog of {folder.name}")
    assert "at least 2" in refused(capsys, *run)


def test_spreadsheets_are_to_be_saved_as_csv(capsys) -> None:
    for places in (["--data", "all.xlsx"], ["--private", "a.XLS", "--public", "b.csv"]):
        assert "Save it as CSV UTF-8." in refused(capsys, *places)


def test_images_of_all_kinds_run_to_the_end(image_folders: dict[str, str]) -> None:
    """Other sizes, modes, suffixes and names, a damaged private file, a class without records."""
    for name, place in image_folders.items():
        Path(place, "dog").rename(Path(place, "Hündin 犬"))
        source = Image.open(Path(place, "cat", "0.png"))
        odd = {"RGBA": "a.PNG", "L": "b é.bmp", "P": "c.png", "CMYK": "d.JPEG", "I;16": "e.png"}
        for number, (mode, file) in enumerate(odd.items()):
            image = source.convert("L").convert(mode) if mode == "I;16" else source.convert(mode)
            image.resize((9 + 30 * number, 60 - 8 * number)).save(Path(place, "cat", file))
        (Path(place) / ("ghost" if name != "private" else ".hidden")).mkdir()
    Image.new("RGB", (8, 8)).save(Path(image_folders["test"], "ghost", "1.png"))
    Path(image_folders["private"], "cat", "broken.jpg").write_bytes(b"no image")
    options = named(image_folders)
    hog = ["--features", "hog", "--student.backbone", "small_cnn", "--run_dir", "out ☃"]
    hog += ["--expected_records", "30"]
    assert pipeline.main(["run", *options, *hog, "--epsilon", "8", *QUICK]) == 0
    assert summary("out ☃")["epsilon"] <= 8
    assert "Hündin 犬" in Path("out ☃", "MODEL_CARD.md").read_text()
    assert "broken" not in "".join(
        path.read_text(errors="replace") for path in Path("out ☃").rglob("*") if path.is_file()
    )


TABLES = ["--private", "a.csv", "--public", "b.csv", "--test", "c.csv", "--label", "kind"]


def test_columns_are_ignored_by_name_in_run_and_init(folder: Path, capsys) -> None:
    for name in "abc":
        Path(f"{name}.csv").write_text("x,town,y,who,kind\n1,Ulm,5,ann,yes\n3,Bonn,6,bob,no\n")
    assert "`data.ignore` must be a list, such as" in refused(
        capsys, *TABLES, "--data.ignore", "town"
    )
    asked = [*TABLES, "--data.ignore=[town]", "--data.person", "who"]
    data = parse([*asked, "--privacy.unit", "person"])[0].data
    assert (data.ignore, data.person) == (["town"], "who")
    command = ["init", *TABLES, "--out", "own.yaml", "--data.ignore", "[town, who]"]
    assert pipeline.main(command) == 0
    assert load_config(Path("own.yaml")).data.ignore == ["town", "who"]
    Path("c.csv").write_text("x,y\n1,2\n")
    assert "columns of data.test. Found 'kind'" in refused(capsys, *TABLES)


@pytest.mark.parametrize("command", ["run", "compare", "serve"])
def test_the_help_is_short_and_all_of_it_is_there(command: str, capsys) -> None:
    for option, full in (("--help", False), ("--help-all", True)):
        with pytest.raises(SystemExit, match=r"^0$"):
            pipeline.main([command, option])
        shown = capsys.readouterr().out
        assert ("--student.vat_epsilon" in shown) == full
        assert full or ("--help-all" in shown and len(shown.splitlines()) < 130)


def test_the_price_comes_after_how_each_column_is_read(tmp_path: Path, capsys) -> None:
    """Of numbers with decimal commas, which are learned from; also in `plan` and in `init`."""
    rng, places = np.random.default_rng(0), list[str]()
    for split, count in (("private", 300), ("public", 60), ("test", 60)):
        y = rng.integers(0, 3 if split != "test" else 2, count)
        x = np.column_stack([y == 0, y == 1]) * 3 + rng.normal(0, 0.3, (count, 2))
        lines = [f"{a:.3f};{b:.3f};{n};{'rst'[y[n]]}" for n, (a, b) in enumerate(x)]
        text = "\n".join(["x;z;row;label", *lines]).replace(".", ",")
        (tmp_path / f"{split}.csv").write_text(text)
        places += [f"--{split}", str(tmp_path / f"{split}.csv")]
    known = [
        "classes: r, s, t",
        "columns, as the public rows show them:",
        "  number, decimal comma: x, z",
        "  left out, whole numbers that all differ, as ids do (data.keep takes it): row",
    ]
    method = ["--mechanism.kind", "private_linear", "--mechanism.steps", "20", "--features", "raw"]
    options = [*places, *method, *QUICK[2:-1], "--student.steps", "300", "--run_dir", "out"]
    assert pipeline.main(["run", *options]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[:4] == known
    assert lines[4].startswith("price: ")
    assert "there are no test rows of t, so accuracy says nothing about these classes" in lines
    assert summary("out")["test_accuracy"] > 0.9
    assert pipeline.main(["plan", *places, *method]) == 0
    assert capsys.readouterr().err.splitlines()[:4] == known
    assert pipeline.main(["init", *places, "--id", "row"]) == 0
    written = Path("labelwall.yaml").read_text()
    assert all(f"# {line}\n" in written for line in known[:3])
    assert "  id: row\n" in written
