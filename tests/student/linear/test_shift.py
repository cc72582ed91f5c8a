"""Shares of public rows that differ from the records': against drawn classes of known shares."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import softmax

from labelwall.student.linear import fit_classes, shift_of_gradients
from labelwall.student.linear.linear_model import LinearModel, fit
from labelwall.student.linear.moments import Moment
from labelwall.student.linear.shift_of_gradients import shifted
from tests.experiment import tiny
from tests.student.linear.test_fits import settings, teacher

CENTRES = 2.0 * np.eye(3, 12)
EQUAL, SKEWED, RARE, TWO = [1 / 3] * 3, [0.7, 0.2, 0.1], [0.475, 0.475, 0.05], [0.5, 0.5, 0.0]


def rows(shares: list[float], count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(features int8, labels) of three overlapping classes around a common middle."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(3), np.rint(count * np.array(shares)).astype(int))
    x = CENTRES[labels] + rng.normal(size=(len(labels), 12))
    order = rng.permutation(len(labels))
    return tiny.integers(x[order]), labels[order]


def shifted_model(private: list[float], public: list[float], noise: float) -> LinearModel:
    features, labels = rows(private, 6_000, 1)
    how = settings("class", 3, noise, 20)
    model = fit(teacher(labels, how, features), rows(public, 2_000, 2)[0], how)
    assert model is not None
    return model


@pytest.mark.parametrize(("private", "public"), [(EQUAL, SKEWED), (SKEWED, EQUAL), (RARE, EQUAL)])
@pytest.mark.parametrize("noise", [0.01, 5.0])
def test_public_rows_of_other_shares_are_labelled_as_if_they_were_known(
    private, public, noise
) -> None:
    """As often right as a model of records that have the public rows' shares themselves."""
    model, oracle = shifted_model(private, public, noise), shifted_model(public, public, 0.01)
    features, labels = rows(public, 6_000, 3)
    right, best = ((m.says(features).argmax(axis=1) == labels).mean() for m in (model, oracle))
    assert right > best - 0.025
    assert model.certainty(model.says(features)).mean() == pytest.approx(right, abs=0.05)
    assert model.shares is not None
    assert np.abs(model.shares.public - public).max() < 0.06
    assert np.abs(model.shares.private - private).max() < 0.06


def test_a_class_that_public_rows_lack_is_not_forgotten() -> None:
    """Rows of all classes are as often right as by public rows of all of them."""
    features, labels = rows(EQUAL, 6_000, 3)
    models = (shifted_model(EQUAL, public, 5.0) for public in (TWO, EQUAL))
    right, best = ((m.says(features).argmax(axis=1) == labels).mean() for m in models)
    assert right > best - 0.06


def test_a_class_of_sixty_records_is_not_lost_among_public_rows_that_have_many() -> None:
    features, labels = rows(EQUAL, 6_000, 3)
    given = shifted_model([0.495, 0.495, 0.01], EQUAL, 40.0).says(features).argmax(axis=1)
    assert (given[labels == 2] == 2).mean() > 0.65


@pytest.mark.parametrize("shares", [EQUAL, SKEWED])
def test_without_a_shift_nothing_is_lost(shares: list[float], monkeypatch) -> None:
    features, labels = rows(shares, 6_000, 3)
    corrected = shifted_model(shares, shares, 5.0)

    def nothing(logits: np.ndarray, *_: object) -> tuple[np.ndarray, None]:
        return np.zeros(logits.shape[1]), None

    monkeypatch.setattr(fit_classes, "shifted", nothing)
    models = corrected, shifted_model(shares, shares, 5.0)
    right, before = ((m.says(features).argmax(axis=1) == labels).mean() for m in models)
    assert right > before - 0.003


RNG, CLASSES = np.random.default_rng(1), 3
INPUTS = np.pad(RNG.normal(size=(2_000, 20)), ((0, 0), (0, 1)), constant_values=1.0)
LOGITS = INPUTS @ RNG.normal(size=(21, CLASSES))


def moment(likely: np.ndarray) -> Moment:
    """A first gradient of rows such as INPUTS that have these probabilities, float64 [n, c]."""
    equal = torch.full(likely.shape, 1 / CLASSES, dtype=torch.float64)
    asked, inputs = [(equal, torch.ones_like(equal))], torch.tensor(INPUTS)
    made = Moment(torch.zeros(21, CLASSES).double(), 0.02, inputs, asked)
    return replace(made, gradient=inputs.T @ made.residuals(torch.tensor(likely)) / len(inputs))


def shift_seen(made: Moment) -> tuple[shift_of_gradients._Shift, np.ndarray]:
    """(how a gradient is compared, offsets [2, c] without a shift)."""
    alike = np.log(softmax(LOGITS, axis=1).mean(axis=0))
    shift = shift_of_gradients._Shift(logits=torch.tensor(LOGITS), moments=[made])
    return shift, np.stack([np.zeros(CLASSES), alike])


def test_foreign_public_rows_are_no_shift_of_shares() -> None:
    """Rows around other centres: the gradients miss by more than any shares explain."""
    skewed = softmax(LOGITS + np.array([4.0, 0.0, -4.0]), axis=1)
    skewed *= 1 / CLASSES / skewed.mean(axis=0)

    def offsets(foreign: float) -> np.ndarray:
        made = moment(skewed)
        away = torch.tensor(np.random.default_rng(2).normal(size=(21, CLASSES)))
        return shifted(LOGITS, [replace(made, gradient=made.gradient + foreign * away)])[0]

    assert np.abs(offsets(0.0)).max() > 0.5
    assert not offsets(0.5).any()


def test_offsets_that_are_off_are_no_shift() -> None:
    """The gradient of rows that are alike, with labels that a classifier of other offsets gives."""
    made = moment(softmax(LOGITS + np.array([2.0, 0.0, -2.0]), axis=1))
    shift, unshifted = shift_seen(made)
    precisions = shift.precisions(unshifted)
    missed = float(shift.misfit(torch.tensor(unshifted), precisions))
    assert missed > 100
    assert shift.alike(precisions) < 0.01 * missed
    assert not shifted(LOGITS, [made])[0].any()


def test_gradients_may_be_known_at_fewer_rows_than_others() -> None:
    """Slopes of many classes take much memory, so that each moment has rows of its own."""
    made = moment(softmax(LOGITS + np.array([2.0, 0.0, -2.0]), axis=1))
    few = made.first(len(LOGITS) - 40)
    found, _ = shifted(LOGITS, [made, few])
    np.testing.assert_allclose(found, shifted(LOGITS, [few, few])[0], atol=0.2)


def test_misfit_that_leaves_the_residuals_sums_alone_is_no_shift() -> None:
    """The gradient of other shares, but for the last row, as of a model that is not quite right."""
    skewed, usual = (
        moment(softmax(LOGITS + np.array(off), axis=1)) for off in ([2.0, 0.0, -2.0], [0.0] * 3)
    )
    shift, unshifted = shift_seen(skewed)
    assert shift.seen_in_totals(unshifted)
    skewed.gradient[-1] = usual.gradient[-1]
    shift, unshifted = shift_seen(skewed)
    assert not shift.seen_in_totals(unshifted)
    assert not shifted(LOGITS, [skewed])[0].any()


def test_residuals_are_those_of_their_definition() -> None:
    rng, n, c = np.random.default_rng(0), 40, 3
    asked = [
        (softmax(rng.normal(size=(n, c)), axis=1), rng.uniform(0.2, 1, (n, c))) for _ in range(2)
    ]
    tensors = [(torch.tensor(p), torch.tensor(kept)) for p, kept in asked]
    moment = Moment(torch.zeros(5, c), 0.3, torch.tensor(rng.normal(size=(n, 5))), tensors)
    likely, expected = rng.random((n, c)), np.zeros((n, c))
    for p, kept in asked:
        for row in range(n):
            for label in range(c):
                residual = (p[row] - np.eye(c)[label]) * kept[row, label]
                expected[row] += likely[row, label] * residual / len(asked)
    np.testing.assert_allclose(moment.residuals(torch.tensor(likely)), expected)
