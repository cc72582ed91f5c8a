"""Several devices, and trainings, at a time return what one would; a killed process is one line."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from joblib.externals.loky import get_reusable_executor

from labelwall.student import held_out, several_devices
from labelwall.student.batches import STEPS_A_CHAPTER, Lesson, Pool, Steps
from labelwall.student.held_out import drop_doubtful
from labelwall.student.several_devices import parallel, process_count
from labelwall.student.student_config import StudentConfig
from labelwall.wall.errors import LabelwallError
from labelwall.wall.label_kinds import ClassLabels
from tests.student import cases

BRIEF = StudentConfig(backbone="small_cnn", doubtful_folds=2, doubtful_steps=4, batch_labelled=8)
ROWS = np.random.default_rng(0).integers(0, 256, (40, 12, 12, 1), dtype=np.uint8)
IMAGES = Pool(ROWS, ClassLabels.of(2), (0.5,), (0.3,))


@pytest.fixture(scope="module", autouse=True)
def _secret() -> Iterator[None]:
    """The caller has a key before any process is started."""
    get_reusable_executor().shutdown(wait=True)  # the processes of other tests
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABELWALL_KEY", "a secret")
        yield


def test_judges_beside_one_another_judge_the_same(monkeypatch) -> None:
    monkeypatch.setattr(several_devices, "LONG", 1)
    monkeypatch.setattr(held_out, "DOUBTFUL", 0.5)
    assert process_count(2, BRIEF, IMAGES) == 2
    lesson, heard = Lesson(pool=IMAGES, labels=np.arange(40) % 2), []

    def progress(*seen: int) -> None:
        heard.append(seen)

    one, two = (drop_doubtful(BRIEF, lesson, seed=3, workers=n, progress=progress) for n in (1, 2))
    np.testing.assert_array_equal(one.labels, two.labels)
    assert one.agreement == two.agreement
    assert 0 < (one.labels < 0).sum() < 40
    assert heard == 2 * [(1, 2), (2, 2)]


def test_each_has_its_share_of_the_threads_no_key_and_results_are_in_order() -> None:
    torch.set_num_threads(4)
    seen = list(parallel(2, [partial(_seen, number) for number in range(3)]))
    assert torch.get_num_threads() == 4
    assert [number for number, *_ in seen] == [0, 1, 2]
    assert all(count == 2 and process != os.getpid() for _, count, process, _ in seen)
    assert [key for *_, key in seen] == [None] * 3
    assert _seen(0)[-1] == "a secret"


def test_processes_that_are_used_again_are_where_the_caller_is(tmp_path, monkeypatch) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert [*parallel(2, [Path.cwd, Path.cwd])] == [tmp_path / name] * 2


def _seen(number: int) -> tuple[int, int, int, str | None]:
    return number, torch.get_num_threads(), os.getpid(), os.environ.get("LABELWALL_KEY")


def test_one_at_a_time_is_in_this_process_when_it_is_asked_for() -> None:
    seen: list[int] = []
    results = parallel(1, [partial(seen.append, number) for number in range(2)])
    assert seen == []
    next(results)
    assert seen == [0]


@pytest.mark.parametrize(
    ("changed", "pool"),
    [
        ({"steps": 10}, IMAGES),
        ({"devices": 2}, IMAGES),
        ({}, Pool(np.zeros((40, 500), dtype=np.float32), ClassLabels.of(2))),
    ],
)
def test_short_trainings_and_those_with_processes_stay_here(changed, pool) -> None:
    assert process_count(3, replace(BRIEF, steps=2_000), IMAGES) == 3
    assert process_count(3, replace(BRIEF, **{"steps": 2_000, **changed}), pool) == 1


CONFIG = StudentConfig(
    backbone="mlp",
    objective="vat",
    steps=STEPS_A_CHAPTER + 10,
    batch_labelled=17,
    batch_unlabelled=25,
    devices=2,
)
DEADLY = "DEADLY_CHAPTER"  # an environment variable


class Killed(ClassLabels):
    """Classes whose training, in a process of its own, is killed where a chapter begins."""

    begun = 0

    def strata(self, labels: np.ndarray) -> np.ndarray:
        Killed.begun += 1
        if Killed.begun == int(os.environ.get(DEADLY, 0)):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().strata(labels)


def _train(run_dir: Path) -> cases.TrainedStudent:
    pool = Pool(cases.VECTORS, Killed.of(cases.CLASSES))
    lesson = Lesson(pool=pool, labels=cases.LABELS)
    test = cases.VECTORS, cases.TRUTH
    return cases.trained(CONFIG, lesson, run_dir=run_dir, seed=4, test=test)


@pytest.mark.slow
def test_two_devices_learn_and_go_on_after_a_kill(tmp_path: Path, monkeypatch) -> None:
    whole = _train(tmp_path / "whole")
    assert whole.history[-1]["accuracy/test"] > 0.8
    assert [row["step"] for row in whole.history] == [100, 110]
    monkeypatch.setenv(DEADLY, "2")
    with pytest.raises(LabelwallError, match="continues from the last checkpoint"):
        _train(tmp_path / "killed")
    last = tmp_path / "killed" / "checkpoints" / "last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == STEPS_A_CHAPTER
    monkeypatch.delenv(DEADLY)
    resumed = _train(tmp_path / "killed")
    assert resumed.weights == whole.weights
    assert resumed.history == whole.history


def test_devices_divide_a_steps_rows() -> None:
    pool = Pool(cases.VECTORS, ClassLabels.of(cases.CLASSES))
    lesson = Lesson(pool=pool, labels=cases.LABELS)
    (whole,) = Steps(lesson, CONFIG, 4, range(7, 8))
    parts = [Steps(lesson, CONFIG, 4, range(7, 8), slice(n, None, 3))[0] for n in range(3)]
    for place, rows in enumerate(whole):
        for number, part in enumerate(parts):
            assert torch.equal(part[place], rows[number::3])
