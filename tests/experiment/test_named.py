"""Every mechanism runs on one's own rows by `--mechanism.kind KIND`, alone or with settings."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelwall import pipeline
from labelwall.experiment.config.options import parse
from labelwall.experiment.config.settings import load_config
from labelwall.experiment.plan.candidates import PLANNERS
from labelwall.experiment.run import expected
from labelwall.teacher.mechanisms.registry import MECHANISMS
from labelwall.teacher.mechanisms.sums import PrivateLinear, Score
from labelwall.wall.errors import MissingData
from tests.experiment import tiny
from tests.experiment.checks import check_one_error, named, shown, summary

pytestmark = pytest.mark.usefixtures("folder")
SMALL = ["--student.steps", "5", "--student.doubtful_folds", "0", "--threads", "1"]
SMALL += ["--workers", "1", "--expected_records", "200"]
SMALL += ["--run_dir", "out", "--custodian_dir", "custody"]
SPLITS = {"private": 200, "public": 48, "test": 100}


def kinds(labels: str) -> list[str]:
    fit = {kind: known for kind, known in MECHANISMS.items() if not issubclass(known, Score)}
    return [kind for kind, known in fit.items() if known.label_space == labels]


def arrays(labels: str) -> list[str]:
    """Options of an npz file whose rows have such labels."""
    of = {"class": lambda x, y: y, "attributes": lambda x, y: np.stack([y > 0, y > 1], 1) * 1}
    truth, members = of.get(labels, lambda x, _: x[:, 0]), {}
    for seed, (split, count) in enumerate(SPLITS.items()):
        x, y = tiny.rows(count, seed)
        members |= {f"{split}_x": x, f"{split}_y": truth(x, y)}
    del members["public_y"]
    np.savez("rows.npz", **members)
    bounds = ["--data.bounds", "[-4, 6]"] if labels == "value" else []
    names = ["--data.classes", "[some, more]"] if labels == "attributes" else []
    return ["--data", "rows.npz", "--data.labels", labels, *bounds, *names]


def files(kind: str) -> list[str]:
    """Options of folders of images, or of texts, in two classes."""
    for seed, (split, count) in enumerate(SPLITS.items()):
        rng = np.random.default_rng(seed)
        for n in range(count):
            folder = Path(split, "ab"[n % 2]) if split != "public" else Path(split)
            folder.mkdir(parents=True, exist_ok=True)
            if kind == "texts":
                words = rng.choice(["one", "two", "three", "four"], 9)
                (folder / f"{n}.txt").write_text(" ".join([*words, "good" if n % 2 else "bad"]))
                continue
            pixels = rng.integers(0, 60, (16, 16, 3)) + 100 * (n % 2)
            image = Image.fromarray(pixels.astype(np.uint8)).convert(
                "L" if kind == "grey" else "RGB"
            )
            image.save(folder / f"{n}.png")
    return named({split: split for split in SPLITS})


ROWS = {
    "vectors": lambda: arrays("class"),
    "table": lambda: [*named(tiny.write_tables(**SPLITS)), "--label", "kind"],
    "grey": lambda: files("grey"),
    "colour": lambda: files("colour"),
    "texts": lambda: files("texts"),
}


def check(options: list[str], kind: str, out: str = "out") -> None:
    assert pipeline.main(["run", *SMALL, *options, "--mechanism.kind", kind]) == 0
    assert sum(r["answered"] for r in summary(out)["rounds"])


@pytest.mark.parametrize("kind", kinds("class"))
def test_classes(kind: str) -> None:
    check(ROWS["vectors"](), kind)


def test_without_labels_to_rehearse_on(monkeypatch) -> None:
    monkeypatch.setitem(SPLITS, "test", 30)
    for kind in kinds("class"):
        check([*ROWS["vectors"](), "--run_dir", kind, "--custodian_dir", f"{kind}.c"], kind, kind)


@pytest.mark.parametrize("kind", ["private_linear", "gnmax"])
@pytest.mark.parametrize("rows", ["table", "grey", "colour", "texts"])
def test_other_rows(kind: str, rows: str) -> None:
    check(ROWS[rows](), kind)


@pytest.mark.parametrize("labels", ["attributes", "value"])
def test_other_labels(labels: str) -> None:
    for kind in kinds(labels):
        options = arrays(labels)
        assert pipeline.main(["plan", *options, "--mechanism.kind", kind]) == 0
    check(options, kinds(labels)[0])


def test_kinds_that_are_rehearsed_are_those_with_candidates() -> None:
    assert PLANNERS.keys() == {kind for kind, known in MECHANISMS.items() if known.rehearsed}


@pytest.mark.parametrize("rounds", [[], ["--rounds", "1"], ["--rounds", "[{}]"]])
def test_a_service_takes_a_named_mechanism_without_a_rehearsal(rounds: list[str]) -> None:
    options = [*ROWS["vectors"](), "--mechanism.kind", "private_linear", *rounds]
    assert parse(options, "serve")[0].private_side().plan().epsilon == 1
    assert parse(options, "run")[0].open == (rounds != ["--rounds", "[{}]"])


def test_a_fixed_plan_says_its_price_and_then_how_long_a_run_takes(capsys, monkeypatch) -> None:
    plan = ["plan", *ROWS["vectors"](), "--mechanism.kind", "gnmax", "--threads", "1"]
    assert json.loads(shown(capsys, *plan, "--json"))["seconds"]["to"] > 0
    said = shown(capsys, *plan)
    assert said.index("epsilon 1.0") < said.index("a run takes about ")

    def missing(_: object) -> None:
        raise MissingData("no rows")

    monkeypatch.setattr(expected, "read_public", missing)
    assert "seconds" not in json.loads(shown(capsys, *plan, "--json"))


GIVEN = {
    "private_linear": ("steps", "3"),
    "reverse_knn": ("centroids", "7"),
    "private_knn": ("k", "20"),
    "private_radius": ("share", "0.2"),
    "ind_knn": ("threshold", "0.5"),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_a_rehearsal_keeps_given_settings_and_finds_the_others(kind: str, capsys) -> None:
    name, value = GIVEN[kind]
    command = ["plan", *ROWS["vectors"](), "--mechanism.kind", kind, f"--mechanism.{name}", value]
    command += ["--expected_records", "2000", "--epsilon", "4", "--threads", "1"]
    candidates = json.loads(shown(capsys, *command, "--json"))["candidates"]
    tried = [candidate["mechanism"] for candidate in candidates]
    assert {(fields["kind"], str(fields[name])) for fields in tried} == {(kind, value)}
    different = {json.dumps((known["view"], known["mechanism"])) for known in candidates}
    assert len(different) == len(tried) > 1


def test_given_noise_stays_and_prices_the_plan(capsys) -> None:
    noisy = [*ROWS["vectors"](), "--mechanism.kind", "private_linear"]
    noisy += ["--mechanism.noise_multiplier", "40", "--out", "chosen.yaml"]
    assert pipeline.main(["plan", *noisy]) == 0
    chosen = load_config(Path("chosen.yaml")).mechanism
    assert isinstance(chosen, PrivateLinear)
    assert chosen.noise_multiplier == 40
    assert chosen.axes is not None
    noisy[-3:] = ["0.5", "--out", "other.yaml"]
    check_one_error(["plan", *noisy], "`budget.epsilon` must be", capsys)


def test_other_given_settings_are_another_run(capsys) -> None:
    run = ["run", *SMALL, *ROWS["vectors"](), "--mechanism.kind", "private_linear"]
    steps = [*run, "--mechanism.steps", "2"]
    assert pipeline.main(steps) == 0
    assert pipeline.main(steps) == 0
    check_one_error([*run, "--mechanism.steps", "3"], "other settings (mechanism", capsys)
    check_one_error([*run, "--mechanism.kind", "reverse_knn"], "other settings", capsys)


@pytest.mark.parametrize(
    ("words", "mentioned"),
    [
        ("private_linear --mechanism.step 3", "Did you mean `mechanism.steps`?"),
        ("private_linear --mechanism.steps 0", "`mechanism.steps` must be"),
        ("private_linear --mechanism.steps few", "`mechanism.steps` must be"),
        ("private_knn --mechanism.threshold 400", "`mechanism.threshold` must be"),
    ],
)
def test_a_given_setting_that_is_none_is_refused(words: str, mentioned: str, capsys) -> None:
    command = ["plan", *ROWS["vectors"](), "--mechanism.kind", *words.split()]
    check_one_error(command, mentioned, capsys)


@pytest.mark.parametrize("kind", ["private_knn", "confident_gnmax"])
def test_without_labels_to_rehearse_on_a_threshold_follows_what_is_given(kind, monkeypatch) -> None:
    monkeypatch.setitem(SPLITS, "test", 30)
    limit = MECHANISMS[kind].limit
    options = [*ROWS["vectors"](), "--mechanism.kind", kind, f"--mechanism.{limit}", "20"]
    fields = parse(options, "plan")[0].mechanism.fields()
    assert (fields[limit], 5 <= fields["threshold"] <= 16) == (20, True)
