"""Measures against their definitions: all pairs of rows, all thresholds, one row at a time."""

import numpy as np
import pytest

from labelwall.student.measures import CURVE, NameMeasures, by_group, measures
from labelwall.wall.label_kinds import AttributeLabels, ClassLabels, ValueLabels

CLASSES, ATTRIBUTES = ClassLabels(("a", "b", "c")), AttributeLabels(("x", "y", "z"))


def made(
    space: ClassLabels | AttributeLabels, rows: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities with many ties, and a truth that they tell a little of."""
    rng = np.random.default_rng(seed)
    probabilities = rng.integers(1, 9, (rows, 3)) / 9
    if space is CLASSES:
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        return probabilities, np.array([rng.choice(3, p=row) for row in probabilities])
    return probabilities, (rng.random((rows, 3)) < probabilities).astype(np.int64)


def check(
    one: NameMeasures, present: np.ndarray, probability: np.ndarray, specificity: float
) -> None:
    with_it, without = probability[present == 1], probability[present == 0]
    pairs = [(a > b) + 0.5 * (a == b) for a in with_it for b in without]
    assert one.auroc == pytest.approx(np.mean(pairs), abs=1e-9)
    levels = sorted({*probability, np.inf}, reverse=True)
    recall = [(with_it >= level).mean() for level in levels]
    false = [(without >= level).mean() for level in levels]
    found = [(probability >= level).sum() for level in levels]
    hits = [(with_it >= level).sum() for level in levels]
    precision = [hit / max(count, 1) for hit, count in zip(hits, found, strict=True)]
    steps = np.diff(recall, prepend=0.0)
    assert one.average_precision == pytest.approx(float(np.dot(steps, precision)), abs=1e-9)

    def best(most: float) -> float:
        return max(r for r, f in zip(recall, false, strict=True) if f <= most + 1e-12)

    assert one.sensitivity == pytest.approx(best(1 - specificity), abs=1e-9)
    curve = [best(most) for most in np.linspace(0, 1, CURVE)]
    assert one.roc == pytest.approx(curve, abs=1e-6)
    assert one.brier == pytest.approx(((probability - present) ** 2).sum() / len(present), abs=1e-9)
    assert one.positives == present.sum()


@pytest.mark.parametrize("space", [CLASSES, ATTRIBUTES], ids=["classes", "attributes"])
@pytest.mark.parametrize("specificity", [0.5, 0.9, 0.99])
def test_each_measure_is_its_definition(space, specificity) -> None:
    probabilities, truth = made(space, 70, 3)
    found = measures(space, probabilities, truth, specificity)
    assert found is not None
    for at, name in enumerate(space.names):
        present = truth[:, at] if space is ATTRIBUTES else (truth == at).astype(int)
        check(found.names[name], present, probabilities[:, at], specificity)
    aurocs = [one.auroc for one in found.names.values()]
    assert found.auroc == pytest.approx(np.mean(aurocs))
    predicted = probabilities.argmax(axis=1) if space is CLASSES else (probabilities > 0.5)
    right = predicted == truth
    assert found.accuracy == pytest.approx(right.mean())
    if space is CLASSES:
        shares = [right[truth == code].mean() for code in range(3)]
    else:
        shares = [right[truth[:, k] == bit, k].mean() for k in range(3) for bit in (0, 1)]
    assert found.balanced_accuracy == pytest.approx(np.mean(shares))
    assert sum(count for count, _, _ in found.bins) == right.size
    gaps = sum(count * abs(sure - hit) for count, sure, hit in found.bins) / right.size
    assert found.calibration_error == pytest.approx(gaps)


def test_a_class_without_rows_has_no_curve_and_does_not_count() -> None:
    probabilities, truth = made(CLASSES, 40, 1)
    rows = truth != 2
    found = measures(CLASSES, probabilities[rows], truth[rows])
    assert found is not None
    assert (found.names["c"].auroc, found.names["c"].roc) == (None, ())
    assert found.auroc == pytest.approx(np.mean([found.names[name].auroc for name in "ab"]))
    assert measures(CLASSES, probabilities[:0], truth[:0]) is None
    assert measures(ValueLabels(0.0, 1.0), probabilities[:, :1], truth.astype(float)) is None


def test_groups_are_measured_by_themselves() -> None:
    probabilities, truth = made(CLASSES, 90, 2)
    groups = np.array(["old", "young", 3], dtype=object)[np.arange(90) % 3]
    groups[:6] = "old"
    found = by_group(CLASSES, probabilities, truth, groups)
    assert next(iter(found)) == "old"  # the largest
    assert {*found} == {"old", "young", "3"}
    for name, one in found.items():
        rows = groups.astype(str) == name
        assert one == measures(CLASSES, probabilities[rows], truth[rows])
