"""The auditor's own smoothed certificate: beside the teacher's, and against too small a claim."""

from dataclasses import asdict

import pytest

from labelwall.teacher.accounting.plan import Release
from labelwall.teacher.accounting.smoothed import smoothed_epsilon
from labelwall.teacher.ledger.auditor.gaussians import check_smoothed, smoothed
from labelwall.teacher.ledger.auditor.values import Problem

SCREEN = {"max_votes": 300, "threshold": 180, "sigma": 75.0, "sampling_probability": 0.15}
LISTS = {
    "unsampled": [
        ("gaussian", {"sigma": 44.0, "sensitivity": 2.0, "sampling_probability": 1.0}, 3)
    ],
    "private_knn": [
        ("screening", SCREEN, 1000),
        ("argmax", {"sigma": 25.0, "sampling_probability": 0.15}, 735),
    ],
    "radius": [("argmax", {"sigma": 9.0, "sampling_probability": 0.1, "swap": False}, 40)],
    "mixed": [
        ("gaussian", {"sigma": 44.0, "sensitivity": 2.0, "sampling_probability": 1.0}, 3),
        ("gaussian", {"sigma": 90.0, "sensitivity": 3.0, "sampling_probability": 0.02}, 500),
        ("pure", {"epsilon": 0.1}, 3),
        ("laplace", {"scale": 20.0, "sensitivity": 2.0}, 2),
    ],
}


@pytest.mark.parametrize("name", LISTS)
def test_two_computations_agree(name):
    releases = [Release("r", *fields) for fields in LISTS[name]]
    claimed, texts = smoothed_epsilon(releases, 1e-5), [asdict(r) for r in releases]
    assert smoothed(texts, 1e-5) == pytest.approx(claimed, rel=1e-3)
    check_smoothed(texts, 1e-5, claimed)
    with pytest.raises(Problem, match="by another computation"):
        check_smoothed(texts, 1e-5, 0.98 * claimed)


@pytest.mark.parametrize(
    ("curve", "parameters"),
    [
        ("zcdp", {"rho": 0.1}),
        ("bounded_range", {"epsilon": 0.1, "sampling_probability": 0.1}),
        ("argmax", {"sigma": 1.5, "sampling_probability": 0.1}),
    ],
)
def test_a_release_without_a_pair_is_refused(curve, parameters):
    with pytest.raises(Problem, match="does not cover"):
        smoothed([{"curve": curve, "parameters": parameters, "cap": 1}], 1e-5)


def test_a_list_that_the_grid_can_not_resolve_is_not_compared():
    fields = {"sigma": 10.0, "sensitivity": 200.0, "sampling_probability": 1e-9}
    texts = [{"curve": "gaussian", "parameters": fields, "cap": 10**5}]
    assert smoothed(texts, 1e-5) is None
    check_smoothed(texts, 1e-5, 0.0)
