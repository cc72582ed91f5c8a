"""Variants of a student's training side by side, on rows that train in a moment."""

from __future__ import annotations

import re

import numpy as np
import pytest


def test_a_row_for_each_variant_and_the_directions_of_vat(
    load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (speed,) = load("student_speed")
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (60, 12, 12, 1), dtype=np.uint8), np.arange(60) % 10
    monkeypatch.setattr(speed, "released", lambda _: (images, labels, labels, images, labels))
    monkeypatch.setattr(
        speed, "VARIANTS", {name: speed.VARIANTS[name] for name in ("float32", "bf16-mixed")}
    )
    speed.main(["--steps", "12", "--repetitions", "2", "--objectives", "uda", "vat"])
    said = capsys.readouterr().out
    assert said.count("| float32 | ") == 2
    assert len(re.findall(r"\| float32 \| [\d.]+ \| 1\.00 \| ", said)) == 2
    assert said.count("| bf16-mixed | ") == 1  # not for vat
    assert "cosine of VAT's directions" in said


def test_time_is_counted_by_the_step_and_given_back(load) -> None:
    (speed,) = load("student_speed")
    times: list[float] = []
    before = speed.StudentModule.training_step
    with speed.noted(times):
        assert speed.StudentModule.training_step is not before
    assert speed.StudentModule.training_step is before
    np.testing.assert_allclose(
        speed.cosine(np.array([[3.0, 4.0], [1.0, 0.0]]), np.array([[4.0, 3.0], [0.0, 2.0]])),
        [0.96, 0.0],
    )
