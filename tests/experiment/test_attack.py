"""An attack on a released model finds what was memorised, and nothing beyond the proved bound."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import safetensors.torch
import torch
from sklearn.linear_model import LogisticRegression

import labelwall as lw
from labelwall import pipeline
from labelwall.experiment.attack import CONFIDENCE, FEW_OUTSIDE, LOSS, RATIO, Attacked, _found
from labelwall.student.student_model import assembled, load_student, pack
from labelwall.wall import networks
from labelwall.wall.errors import InvalidInput
from tests.experiment import tiny

D, MEMBERS = 300, 25


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    x = rng.normal(size=(n, D))
    x[:, 0] += 4 * labels
    return x.astype(np.float32), labels


def release(folder: Path, split: lw.Data, kind: str, **more: Any) -> None:
    """A run at epsilon 1 beside its private rows, by a plan of its own: none is rehearsed."""
    settings = {"mechanism": {"kind": kind, "steps": 4}, "rounds": [{}], "features": "raw"}
    settings |= {"student": {"steps": 40, "doubtful_folds": 0}, "threads": 1, "quiet": True}
    settings |= {"expected_records": 400}
    lw.fit(split, 1.0, run_dir=folder / "run", custody=folder / "custody", **settings, **more)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("attacked")
    data = lw.Data(rows(600, 1), rows(100, 2)[0], rows(300, 3))
    release(folder, data, "private_linear")
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished / "run", tmp_path / "run")
    return tmp_path / "run"


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def memorised() -> tuple[np.ndarray, np.ndarray]:
    """Rows with labels that only memory gives."""
    return rows(MEMBERS, 1)[0], np.random.default_rng(9).integers(0, 2, MEMBERS)


def by_heart(run: Path, x: np.ndarray, goal: torch.Tensor, loss: Callable[..., Any]) -> None:
    """Put a network that has learned ``goal`` of these rows in the place of a run's student."""
    info = load_student(run).info
    torch.manual_seed(0)
    network = networks.build("mlp", input_shape=(D,), num_classes=info.labels.outputs)
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    for _ in range(300):
        optimiser.zero_grad()
        loss(network(torch.tensor(x)), goal).backward()
        optimiser.step()
    file = pack(replace(info, backbone="mlp"), safetensors.torch.save(network.state_dict()))
    (run / "student.safetensors").write_bytes(file)


def test_a_private_model_tells_no_more_than_is_proved_and_nothing_is_written(finished) -> None:
    before = content(finished)
    found = lw.attack(finished / "run")
    assert content(finished) == before
    assert (found.method, found.members, found.nonmembers) == (RATIO, 600, 300)
    rare, often = found.rows
    assert rare["true_positive_rate"] is None  # of 300 non-members
    assert often["low"] <= often["true_positive_rate"] <= often["high"]
    bounds = [risk.true_positive_rate for risk in lw.audit(finished / "run").risks()]
    assert [row["bound"] for row in found.rows] == bounds
    assert bounds[1] < 0.03
    assert often["low"] <= often["bound"]
    assert not often["above"]
    assert str(found) == repr(found)
    assert str(found).startswith("PRIVATE")
    assert "ABOVE THE BOUND" not in str(found)


@pytest.mark.parametrize("outside", [100, 300, 3000])
def test_few_non_members_are_no_reason_for_an_alarm(outside: int) -> None:
    """Members and non-members are alike, and the bound is that of a release that tells nothing."""
    rng, trials = np.random.default_rng(0), 1000
    pairs = [(rng.normal(size=600), rng.normal(size=outside)) for _ in range(trials)]
    found = [_found(0.01, *pair, 0.01) for pair in pairs]
    assert sum(row["above"] for row in found) <= (1 - CONFIDENCE) * trials
    unsure = next(row for row in found if row["low"] > row["bound"] and not row["above"])
    assert FEW_OUTSIDE in str(Attacked(LOSS, 600, outside, [unsure]))


def test_a_linear_model_without_noise_is_found(run: Path) -> None:
    student, (x, y) = load_student(run), memorised()
    tensors = safetensors.torch.load(student.weights)
    tensors |= {"trunk.1.weight": torch.eye(D), "trunk.1.bias": torch.zeros(D)}
    whole = assembled(student.info, safetensors.torch.save(tensors)).module.network
    with torch.inference_mode():
        features = whole.features(torch.tensor(x)).numpy()
    fitted = LogisticRegression(C=1e3, max_iter=1000).fit(features, y)
    layer = torch.tensor(np.vstack([-fitted.coef_, fitted.coef_]) / 2).float()
    tensors |= {"head.weight": layer, "head.bias": torch.zeros(2)}
    file = pack(student.info, safetensors.torch.save(tensors))
    (run / "student.safetensors").write_bytes(file)
    found = lw.attack(run, members=(x, y))
    assert found.method == RATIO
    assert found.rows[1]["true_positive_rate"] > 0.2
    assert found.rows[1]["above"]
    assert "ABOVE THE BOUND" in str(found)


def test_a_network_without_noise_is_found_by_its_loss(run: Path, capsys) -> None:
    x, y = memorised()
    by_heart(run, x, torch.tensor(y), torch.nn.functional.cross_entropy)
    np.savez(run.parent / "members.npz", x=x, y=y)
    command = ["attack", "--run_dir", str(run), "--members", str(run.parent / "members.npz")]
    assert pipeline.main(command) == 0
    text = capsys.readouterr().out
    assert text.startswith("PRIVATE")
    assert f"{LOSS} by class: {MEMBERS} members, 300 non-members" in text
    assert "ABOVE THE BOUND" in text
    assert "0.1%   unknown: it takes 1000 non-members" in text
    found = lw.attack(run, members=(x, y))
    assert found.rows[1]["true_positive_rate"] > 0.2


@pytest.mark.parametrize("kind", ["value", "attributes"])
def test_other_labels_without_noise_are_found_by_their_loss(tmp_path: Path, kind: str) -> None:
    def labelled(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = rows(n, seed)
        return x, 2.0 * y if kind == "value" else np.column_stack([y, 1 - y])

    about: dict = {"labels": kind} | ({"bounds": [-1, 3]} if kind == "value" else {})
    rows_of = lw.Data(labelled(400, 1), labelled(100, 2)[0], labelled(300, 3))
    release(tmp_path, rows_of, f"private_linear_{kind}", data=about)
    found = lw.attack(tmp_path / "run").rows[1]
    assert found["low"] <= found["bound"]
    x, y = memorised()
    truth = np.where(y == 1, 2.0, 0.0) if kind == "value" else np.column_stack([y, 1 - y])
    goal = torch.tensor((truth[:, None] - 1) / 2 if kind == "value" else truth).float()
    loss = {"value": torch.nn.functional.mse_loss}.get(
        kind, torch.nn.functional.binary_cross_entropy_with_logits
    )
    by_heart(tmp_path / "run", x, goal, loss)
    attacked = lw.attack(tmp_path / "run", members=(x, truth))
    assert attacked.method == LOSS
    assert attacked.rows[1]["true_positive_rate"] > 0.2
    assert attacked.rows[1]["above"]


def test_files_of_a_table_are_named_as_the_runs_rows_are(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.write_tables(a=240, b=120, c=200)
    command = "run --private a.csv --public b.csv --test c.csv --label kind --epsilon 5 --quiet"
    command += " --run_dir run --mechanism.kind private_linear --mechanism.steps 20"
    command += " --rounds [{}] --student.steps 20 --threads 1"
    assert pipeline.main(command.split()) == 0
    pandas.read_csv("c.csv").to_parquet("c.parquet")
    own, named = lw.attack("run"), lw.attack("run", members="a.csv", nonmembers="c.parquet")
    assert (named.members, named.nonmembers) == (240, 200)
    assert named.rows == own.rows
    (tmp_path / "d.csv").write_text("x0,kinds\n1,c0\n2,c1\n")
    with pytest.raises(InvalidInput, match="the column kind"):
        lw.attack("run", members="d.csv")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"members": np.zeros((4, D))}, "`members` must be a pair"),
        ({"nonmembers": (np.zeros((1, D), "f4"), [0])}, "`nonmembers` must be at least 2 rows"),
        ({"members": (np.zeros((4, D), "f4"), [0])}, "of the shape"),
        ({"members": (np.zeros((4, 3), "f4"), [0] * 4)}, "as the student was trained on"),
    ],
)
def test_a_mistake_is_one_line(finished: Path, given: dict, text: str) -> None:
    with pytest.raises(InvalidInput, match=text) as error:
        lw.attack(finished / "run", **given)
    assert "\n" not in str(error.value)
