"""The contract of a label space, run for all three; scores by independent oracles."""

from dataclasses import dataclass

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, confusion_matrix, multilabel_confusion_matrix

from labelwall.student.module import STUDENT_MODULES
from labelwall.wall.errors import InvalidInput
from labelwall.wall.label_kinds import (
    CELLS,
    MOST_ATTRIBUTES,
    STEPS,
    AttributeLabels,
    ClassLabels,
    ValueLabels,
    label_space,
    pack,
    unpack,
)
from labelwall.wall.labels import LabelSpace, class_names, code_of, has_label, written
from labelwall.wall.messages import ABSTAINED

N = 40
RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Case:
    """A space, truth of N rows, and arrays that are no labels of it."""

    space: LabelSpace
    truth: np.ndarray
    wrong: tuple[np.ndarray, ...]


WORDS = np.array(["a"] * N)
CASES = {
    "class": Case(
        ClassLabels(("cat", "dog", "emu")),
        RNG.integers(0, 3, N),
        (np.zeros((N, 3), int), WORDS.astype("S")),
    ),
    "attributes": Case(
        AttributeLabels(("red", "round")),
        RNG.integers(0, 2, (N, 2)),
        (np.zeros(N, int), np.zeros((N, 3), int), WORDS),
    ),
    "value": Case(ValueLabels(-2.0, 3.0), RNG.uniform(-2, 3, N), (np.zeros((N, 1)), WORDS)),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def labels_of(case: Case) -> np.ndarray:
    return case.space.expand(case.space.encode("y", case.truth))


def test_a_space_is_made_again_of_its_fields(case):
    assert label_space(**case.space.fields()) == case.space
    assert case.space in {case.space}
    assert case.space.kind in STUDENT_MODULES
    with pytest.raises(InvalidInput, match=r"data\.labels"):
        label_space("several")


def test_truth_comes_back_from_codes_and_labels(case):
    space, labels = case.space, labels_of(case)
    again = space.decode(labels)
    off = np.abs(again - case.truth).max()
    assert off <= (5 / STEPS / 2 * (1 + 1e-9) if space.kind == "value" else 0)
    np.testing.assert_array_equal(space.expand(space.encode("y", again)), labels)
    assert (again.shape, again.dtype) == (case.truth.shape, case.truth.dtype)


def test_a_code_is_a_function_of_its_own_row(case):
    """And a row that has no label is no code, and raises nothing."""
    space, codes = case.space, case.space.encode("y", case.truth)
    assert (codes.dtype, codes.shape) == (np.int64, (N,))
    alone = [space.encode("y", case.truth[i : i + 1])[0] for i in range(N)]
    np.testing.assert_array_equal(codes, alone)
    assert space.is_code(codes).all()
    edges = np.array([-1, 0, space.num_labels - 1, space.num_labels])
    assert space.is_code(edges).tolist() == [False, True, True, False]
    truth = case.truth.copy()
    truth[3] = np.nan if space.kind == "value" else 7
    assert np.flatnonzero(~space.is_code(space.encode("y", truth))).tolist() == [3]


def test_other_arrays_are_refused_without_their_count(case):
    for wrong in case.wrong:
        with pytest.raises(InvalidInput, match="private_y") as refused:
            case.space.encode("private_y", wrong)
        assert str(N) not in str(refused.value)
        with pytest.raises(InvalidInput, match="test_y"):
            case.space.check_public("test_y", wrong, None)


def test_public_labels_are_checked_and_keep_their_form(case):
    found = case.space.check_public("test_y", case.truth, N)
    np.testing.assert_array_equal(found, case.truth)
    none = case.truth * np.nan if case.space.kind == "value" else case.truth * 0 - 1
    for truth, rows in ((case.truth, N + 1), (case.truth[:0], None), (none, N)):
        with pytest.raises(InvalidInput, match="test_y"):
            case.space.check_public("test_y", truth, rows)


def test_labels_have_the_shape_of_no_labels(case):
    labels, none = labels_of(case), case.space.no_labels(N)
    assert (labels.dtype, labels.shape) == (none.dtype, none.shape)
    assert (none == ABSTAINED).all()
    assert not has_label(none).any()
    half = np.where(np.arange(N) < 9, labels.T, none.T).T
    np.testing.assert_array_equal(has_label(half), np.arange(N) < 9)
    strata = case.space.strata(half)
    np.testing.assert_array_equal(strata >= 0, has_label(half))
    assert case.space.kind == "class" or set(strata.tolist()) == {-1, 0}  # others take no turns
    assert case.space.text(none[0]) is None
    assert has_label(none[:0]).shape == (0,)


def test_scores_are_the_oracles(case):
    space, truth = case.space, case.truth
    found = truth[RNG.permutation(N)]
    known = RNG.random(truth.shape) < 0.7
    score = space.score(found, truth, known)
    if space.kind == "value":
        off = found[known] - truth[known]
        assert score["accuracy"] is None
        assert score["errors"] == {
            "rmse": pytest.approx(np.sqrt((off**2).mean())),
            "mae": pytest.approx(np.abs(off).mean()),
            "r2": pytest.approx(1 - (off**2).mean() / truth[known].var()),
        }
        assert space.format_score(score).startswith("RMSE ")
    else:
        right = accuracy_score(truth[known], found[known])
        assert score == {"accuracy": pytest.approx(right)}
        assert space.format_score(score) == f"{100 * right:.2f}% right"
    assert space.score(found, truth) == space.score(found, truth, np.ones(truth.shape, dtype=bool))
    assert space.format_score(space.score(found, truth, ~known & known)) == "unknown"


def value_counts(truth: np.ndarray, found: np.ndarray) -> np.ndarray:
    return np.histogram2d(truth, found, bins=[np.linspace(-2, 3, CELLS + 1)] * 2)[0]


COUNTS = {  # (what confusion has to be, what a tally has to be)
    "class": (confusion_matrix, lambda y: [(y == c).sum() for c in range(3)]),
    "attributes": (multilabel_confusion_matrix, lambda y: y.sum(axis=0)),
    "value": (value_counts, lambda y: np.histogram(y, np.linspace(-2, 3, 11))[0]),
}


def test_confusion_and_tally_count_every_row(case):
    found, (confused, tallied) = case.truth[RNG.permutation(N)], COUNTS[case.space.kind]
    counts = case.space.confusion(case.truth, found)
    np.testing.assert_array_equal(counts, confused(case.truth, found))
    names, counts = case.space.tally(case.space.encode("y", case.truth))
    assert len(names) == len(counts)
    np.testing.assert_array_equal(counts, tallied(case.truth))


def test_a_network_has_an_output_for_each_name(case):
    assert case.space.outputs == len(case.space.names)
    outputs = RNG.normal(size=(N, case.space.outputs)).astype(np.float32)
    found = case.space.predict(outputs)
    assert (found.shape, found.dtype) == (case.truth.shape, case.truth.dtype)
    case.space.check_public("predicted", found, N)
    if case.space.kind == "value":
        assert {found.min(), found.max()} == {*case.space.bounds}  # what lies outside is clipped


def test_spaces_are_named_by_numbers_and_labels_read_as_their_names():
    assert label_space("class").numbered(np.array([0, 4])) == ClassLabels.of(5)
    assert label_space("class").numbered(np.array([0])) == ClassLabels.of(2)
    assert label_space("attributes").numbered(np.zeros((1, 3))) == AttributeLabels.of(3)
    classes, attributes = CASES["class"].space, CASES["attributes"].space
    assert classes.text(np.array(1)) == "dog"
    assert attributes.text(np.array([1, -1])) == "red, round?"
    assert attributes.text(np.array([0, 0])) == "none of them"
    assert attributes.text(np.array([-1, -1])) is None
    assert ValueLabels(0.0, 4096.0).text(np.array(7)) == "7"


def test_packing_is_binary_and_refuses_other_entries():
    bits = np.random.default_rng(0).integers(0, 2, (50, 62))
    packed = [sum(bit << j for j, bit in enumerate(row)) for row in bits.tolist()]
    assert pack(bits).tolist() == packed
    np.testing.assert_array_equal(unpack(pack(bits), 62), bits)
    assert pack(np.array([[0, 1, 1], [0, 2, 1], [-1, 0, 0], [0, 0, 0]])).tolist() == [6, -1, -1, 0]
    with pytest.raises(InvalidInput, match=r"data\.classes"):
        AttributeLabels.of(MOST_ATTRIBUTES + 1)


def test_probabilities_agree_with_what_is_predicted(case):
    outputs = RNG.normal(size=(N, case.space.outputs)).astype(np.float32)
    shares = case.space.probabilities(outputs)
    certainty, predicted = case.space.certainty(shares), case.space.predict(outputs)
    if case.space.kind == "value":
        assert shares.shape == certainty.shape == (N, 0)
        return
    assert shares.shape == outputs.shape
    assert ((shares > 0) & (shares < 1)).all()
    assert certainty.shape == predicted.shape
    if case.space.kind == "class":
        np.testing.assert_allclose(shares.sum(axis=1), 1)
        np.testing.assert_array_equal(shares.argmax(axis=1), predicted)
        np.testing.assert_array_equal(certainty, shares[np.arange(N), predicted])
    else:
        np.testing.assert_array_equal(shares > 0.5, predicted == 1)
        np.testing.assert_array_equal(certainty, np.where(predicted == 1, shares, 1 - shares))


def test_what_is_outside_the_bounds_is_at_the_edge():
    labels = ValueLabels(-1.0, 2.0).steps(np.array([-7.0, -1.0, 0.5, 2.0, 9.0]))
    assert labels.tolist() == [0, 0, STEPS // 2, STEPS, STEPS]
    outside = np.array([-99.0, 30.0, 10.0]), np.array([-10.0, 99.0, 10.0])
    counts = ValueLabels(-10, 30).confusion(*outside)
    assert counts.shape == (CELLS, CELLS)
    assert counts[0, 0] == counts[-1, -1] == counts[CELLS // 2, CELLS // 2] == 1


BOUNDS = [(1.0, 1.0), (2.0, 1.0), (0.0, np.inf), (np.nan, 1.0), (-1e308, 1e308)]


@pytest.mark.parametrize("bounds", BOUNDS)
def test_bounds_are_finite_and_ascend(bounds):
    with pytest.raises(InvalidInput, match=r"data\.bounds"):
        ValueLabels(*bounds)


E_ACUTE = ("\u00e9t\u00e9", "e\u0301te\u0301")  # in composed and decomposed form


@pytest.mark.parametrize(
    ("names", "label", "code"),
    [
        (["0", "1"], 1.0, 1),
        (["0", "1"], "1.0", 1),
        (["0.0", "1.0"], np.int64(1), 1),
        (["0", "1"], np.float32(1), 1),
        (["1", "01"], "01", 1),
        (["1.5", "2"], 1.5, 0),
        (["no", "yes"], " YES ", 1),
        (["a", "A"], "A", 1),
        (["a", "A", "b"], "B", 2),
        (["a\u00e4", "A\u00c4"], "A\u00e4", -1),  # two names differ by case alone: as written
        ([E_ACUTE[0], "b"], E_ACUTE[1], 0),
        ([E_ACUTE[1], "b"], E_ACUTE[0].upper(), 0),
        (["a", "b"], "", -1),
        (["a", "b"], None, -1),
        (["a", "b"], float("nan"), -1),
        (["a", "b"], float("inf"), -1),
        (["0", "1"], "\ud800", -1),
    ],
)
def test_labels_are_what_they_are_however_they_are_written(names, label, code):
    assert code_of(names)(label) == code
    if isinstance(label, float | np.generic):  # as arrays of numbers and of texts hold it
        texts = np.array([str(label)])
        assert ClassLabels(tuple(names)).encode("y", texts).tolist() == [code]


def test_classes_are_those_of_test_and_public_rows():
    assert class_names(["b", "10", 9.0, "b "], []) == ["9", "10", "b"]
    assert class_names(["a", "b"], ["A", "c", "", "?", "nan", "-1", None]) == ["a", "b", "c"]
    assert class_names(["a", "b"], ["x", "y"]) == ["a", "b"]  # names of something else
    assert class_names([], ["-1", "1", "none"]) == ["-1", "1"]
    assert class_names(["none", "some"], ["none"]) == ["none", "some"]


def test_numbers_that_are_not_whole_are_no_classes():
    labels = ClassLabels.of(3).encode("y", np.array([1.0, 1.5, np.nan, np.inf, -0.0, 1e300]))
    assert labels.tolist() == [1, -1, -1, -1, 0, -1]
    assert ClassLabels.of(2).encode("y", np.array([True, False])).tolist() == [1, 0]
    assert written(-3.0) == "-3"
    assert written(10**5000) == ""  # Python prints no such number


@pytest.mark.parametrize(
    ("truth", "found"),
    [
        (np.array([0, 0.5, 1]), "0.5"),
        (np.array([0, 1, 5]), "5"),
        (np.array(["a", "b", "c"]), "c"),
    ],
)
def test_the_first_public_label_that_is_none_is_shown(truth: np.ndarray, found: str) -> None:
    with pytest.raises(InvalidInput, match=found):
        label_space("class", ["a", "b"], []).check_public("test_y", truth, 3)
