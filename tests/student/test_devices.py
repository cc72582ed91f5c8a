"""Several devices, and trainings, at a time return what one would; a killed process is one line."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from joblib.externals.loky import get_reusable_executor

from labelwall.student.config import StudentConfig
from labelwall.student.data import STEPS_A_CHAPTER, Pool, Steps
from labelwall.wall.errors import LabelwallError
from labelwall.wall.label_kinds import ClassLabels
from tests.student import cases


@pytest.fixture(scope="module", autouse=True)
def _secret() -> Iterator[None]:
    """The caller has a key before any process is started."""
    get_reusable_executor().shutdown(wait=True)  # the processes of other tests
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABELWALL_KEY", "a secret")
        yield


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
    test = {"test_x": cases.VECTORS, "test_y": cases.TRUTH}
    return cases.trained(CONFIG, pool, cases.LABELS, run_dir=run_dir, seed=4, **test)


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
    (whole,) = Steps(pool, cases.LABELS, CONFIG, 4, 7, 1)
    parts = [Steps(pool, cases.LABELS, CONFIG, 4, 7, 1, None, n, 3)[0] for n in range(3)]
    for place, rows in enumerate(whole):
        for number, part in enumerate(parts):
            assert torch.equal(part[place], rows[number::3])
