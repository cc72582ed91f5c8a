"""A run whose first releases show no records stops, and goes on with the rest when files are
mended: for every kind of mechanism that is judged, with the ledger's counts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import labelwall as lw
from labelwall import pipeline
from labelwall.experiment.run import stopping
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.wall.errors import InvalidInput, LabelwallError
from tests.experiment import tiny
from tests.experiment.checks import QUICK, RUN, check_one_error, killed, run, shown, summary

pytestmark = pytest.mark.usefixtures("one_budget")
VALUES = {"source": "arrays", "labels": "value", "bounds": [-10, 30], "path": "data.npz"}
ATTRIBUTES = {
    "source": "arrays",
    "labels": "attributes",
    "path": "data.npz",
    "classes": ["a", "b", "c"],
}
VOTES = {"k": 15, "threshold": 9, "sigma_screen": 2.0, "sigma_vote": 2.0, "sample_rate": 0.3}
SUMS = {"kind": "private_linear", "steps": 10}
LATE = {"kind": "private_linear", "steps": 20}
# Settings; the release; how many until it stops; and of the whole plan
KINDS: dict[str, tuple[dict[str, Any], str, int, int]] = {
    "sums": ({"mechanism": SUMS}, "sum", 1, 10),
    "axes": ({"mechanism": {**SUMS, "axes": 6}}, "sum", 1, 10),
    "two rounds": ({"mechanism": SUMS, "rounds": [{}, {}]}, "sum", 1, 20),
    "few records": (
        {"mechanism": LATE, "budget": {"epsilon": 4.0}, "expected_records": 120},
        "sum",
        4,
        20,
    ),
    "value": (
        {"mechanism": {"kind": "private_linear_value", "steps": 6}, "data": VALUES},
        "sum",
        2,  # the first one's noise looks like some records
        6,
    ),
    "attributes": (
        {"mechanism": {"kind": "private_linear_attributes", "steps": 10}, "data": ATTRIBUTES},
        "sum",
        1,
        10,
    ),
    "histograms": (
        {"mechanism": {"kind": "reverse_knn", "centroids": 9}, "rounds": [{}, {}]},
        "histogram",
        1,
        2,
    ),
    "votes": (
        {"mechanism": VOTES, "rounds": [{"queries": 240}], "budget": {"epsilon": 300.0}},
        "screen",
        100,
        240,
    ),
    "neighbours": (
        {
            "mechanism": {"kind": "ind_knn", "threshold": 0.3, "sigma_label": 0.05},
            "rounds": [{"queries": 240}],
            "budget": {"epsilon": 300.0},
        },
        "answer",
        0,  # what a record pays is private, and one that is dropped pays nothing
        0,
    ),
}


def labels_of(settings: dict[str, Any], classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The labels of a kind, and the same written so that they are none."""
    kind = settings.get("data", {}).get("labels", "class")
    if kind == "value":
        return 3.0 * classes, np.full(len(classes), np.nan)
    if kind == "attributes":
        return np.eye(3, dtype=int)[classes], np.full((len(classes), 3), 2)
    return classes, classes + tiny.CLASSES


def write(name: str) -> np.ndarray:
    """Data and configuration of a kind, with private labels that are none; returns the mended."""
    settings = {"budget": {"epsilon": 20.0}, "caps": None, "rounds": [{}]} | KINDS[name][0]
    tiny.write(**settings)
    public, test = tiny.rows(400, 2), tiny.rows(90, 3)
    right, wrong = labels_of(settings, tiny.rows(200, 1)[1])
    truth = labels_of(settings, test[1])[0]
    public_y = labels_of(settings, public[1])[0]
    rows = {"public_x": public[0], "public_y": public_y, "test_x": test[0], "test_y": truth}
    tiny.change(**rows, private_y=wrong)
    return right


def spent() -> dict[str, int]:
    state = Ledger(Path("data.npz.custodian/ledger.sqlite")).state
    return {release: count for (_, release), count in state.spent.items()}


def remembered() -> int:
    """The releases that the run folder says were spent by stops."""
    stops = json.loads(Path("out/stopped.json").read_text())["stops"]
    return sum(stop["releases"] for stop in stops)


def stops(capsys, *more: str) -> None:
    check_one_error([*RUN, *QUICK, *more], "so the run stops here. Usual causes: labels", capsys)


@pytest.mark.parametrize("name", KINDS)
def test_the_rest_of_the_plan_is_kept_and_the_same_command_goes_on(folder, name, capsys) -> None:
    _, release, first, whole = KINDS[name]
    mended = write(name)
    stops(capsys)
    assert spent().get(release, 0) == first
    copy = RunFolder(Path("out")).ledger_state().spent
    assert {release: count for (_, release), count in copy.items()} == spent()
    if first == 1 and whole > 2:  # nothing was mended: it says so again, and what is left
        check_one_error([*RUN, *QUICK], f"of {whole} noisy counts are left", capsys)
        assert spent()[release] == remembered() < 5
    tiny.change(private_y=mended)
    assert run(*QUICK) == 0
    assert spent().get(release, 0) == whole
    assert not audit(Path("out/ledger.sqlite")).problems
    right = summary()["test_accuracy"]
    clean = ("--custodian_dir", "clean", "--run_dir", "clean_run", "--quiet", *QUICK)
    assert pipeline.main(["run", "--config", "config.yaml", *clean]) == 0
    if right is None:
        assert summary()["test_errors"]["r2"] > summary("clean_run")["test_errors"]["r2"] - 0.2
    else:
        assert right > summary("clean_run")["test_accuracy"] - 0.08


def test_rows_before_a_stop_have_no_labels(folder, capsys) -> None:
    mended = write("neighbours")
    stops(capsys)
    tiny.change(private_y=mended)
    assert run(*QUICK) == 0
    with np.load("out/round_1/answers.npz") as stored:
        given = stored["labels"] >= 0
    assert (given[:100].any(), given[100:].all()) == (False, True)


@pytest.mark.parametrize("name", ["few records", "histograms", "votes"])
def test_a_kill_between_the_releases_and_the_stop_pays_nothing_twice(
    folder, name, monkeypatch, capsys
) -> None:
    _, release, first, whole = KINDS[name]
    mended = write(name)
    with monkeypatch.context() as patched:
        patched.setattr(stopping, "write", killed)
        assert pipeline.main([*RUN, *QUICK]) != 0
    assert spent()[release] == first
    stops(capsys)
    assert spent()[release] == first
    tiny.change(private_y=mended)
    assert run(*QUICK) == 0
    assert spent()[release] == whole


def test_another_run_folder_is_not_served_the_sum_of_the_rows_before(folder, capsys) -> None:
    mended = write("sums")
    stops(capsys)
    tiny.change(private_y=mended)
    other = ("--run_dir", "other")
    stops(capsys, *other)  # by the stored sum, for nothing
    assert spent() == {"sum": 1}
    assert pipeline.main([*RUN, *QUICK, *other]) == 0
    assert spent() == {"sum": 10}
    assert summary("other")["test_accuracy"] > 0.75


def test_records_as_guessed_or_said_to_be_few_stop_nothing(folder, capsys) -> None:
    """At epsilon 1 the noise of all counts hides 30 records, as it is told before they are asked;
    many rows pass; so do few of them where the noise is small."""
    write("sums")
    for rows, epsilon, guess in ((200, "4", "200"), (30, "1", "30"), (30, "60", "30")):
        x, y = tiny.rows(rows, 1)
        tiny.change(private_x=x, private_y=y, private_id=y * 0 + np.arange(rows))
        more = ("--budget.epsilon", epsilon, "--expected_records", guess)
        place = f"{rows}_{epsilon}"
        told = shown(
            capsys, "run", "--config", "config.yaml", "--run_dir", place, *more, *QUICK,
            "--custodian_dir", f"{place}.custody",
        )  # fmt: skip
        assert ("(expected_records) cannot be seen" in told) == (epsilon == "1")
        assert not Path(place, "stopped.json").exists()


def test_an_update_stops_too_and_goes_on_in_its_own_period(folder, capsys) -> None:
    budget = {"epsilon": 40.0, "periods": 2}
    tiny.write(mechanism=SUMS, budget=budget, caps=None, rounds=[{}])
    y = tiny.rows(200, 1)[1]
    assert run(*QUICK) == 0
    tiny.change(private_y=y + tiny.CLASSES)
    update = ["update", "--run_dir", "out"]
    check_one_error(update, "round 2: a released count of", capsys)
    tiny.change(private_y=y)
    assert pipeline.main(update) == 0
    slots = Ledger(Path("data.npz.custodian/ledger.sqlite")).state.spent
    assert slots == {(0, "sum"): 10, (1, "sum"): 10}


def test_rows_in_memory_are_mended_by_the_same_call() -> None:
    (x, y), (public, _), (test, truth) = tiny.rows(200, 1), tiny.rows(400, 2), tiny.rows(90, 3)
    names = np.array(["ant", "bee", "cat"], dtype=object)

    def fit(labels: np.ndarray) -> lw.Model:
        data = lw.Data(private=(x, labels), public=public, test=(test, names[truth]))
        settings: dict[str, Any] = {"mechanism": SUMS, "student": {"steps": 20}, "threads": 1}
        return lw.fit(data, 20.0, run_dir="out", custody="custody", quiet=True, **settings)

    with pytest.raises(LabelwallError, match=r"written as the classes are \(ant, bee, cat\)"):
        fit(np.char.add(names[y].astype(str), "s"))
    assert fit(names[y]).score(test, names[truth]) > 0.75
    with pytest.raises(InvalidInput, match="other rows"):  # the run is finished
        fit(names[y[::-1]])


def test_a_class_without_records_stops_a_run_once(folder, capsys) -> None:
    """The same command goes on, whether the file was mended or the class has none."""
    tiny.write(mechanism=SUMS, budget={"epsilon": 60.0}, caps=None, rounds=[{}])
    (x, y), (u, uy) = tiny.rows(900, 1), tiny.rows(400, 2)
    tiny.change(
        private_x=x,
        private_y=np.where(y == 1, 9, y),
        private_id=np.arange(900),
        public_x=u,
        public_y=uy,
    )
    check_one_error([*RUN, *QUICK], "show no private row of 1 (usually", capsys)
    assert spent() == {"sum": 1}
    assert run(*QUICK) == 0
    assert spent() == {"sum": 10}


@pytest.mark.slow
def test_a_teacher_in_another_process_is_stopped_alike(folder, capsys) -> None:
    mended = write("sums")
    stops(capsys, "--isolate")
    tiny.change(private_y=mended)
    assert run(*QUICK, "--isolate") == 0
    assert spent() == {"sum": 10}
