"""Fields of all kinds: what is out of its range is refused by its name, and a price needs noise."""

import math
from typing import Any

import pytest

from labelwall.teacher.mechanisms.fields import params
from labelwall.teacher.mechanisms.registry import MECHANISMS, space_of
from labelwall.wall.errors import InvalidInput

TOGETHER: list[tuple[str, str, dict[str, Any]]] = [
    ("private_knn", "threshold", {"k": 10, "threshold": 11}),
    ("confident_gnmax", "threshold", {"threshold": 251}),
    ("private_knn_mean", "threshold", {"k": 7, "threshold": 8}),
    ("private_knn_median", "window", {"cells": 8, "window": 8}),
    ("reverse_knn", "neighbours", {"centroids": 5, "neighbours": 6}),
    ("reverse_knn", "row_neighbours", {"centroids": 5, "row_neighbours": 6}),
    ("ind_knn", "sigma_count", {"rho": 0.5, "sigma_count": 0.99}),
    ("batch_knn", "conversion_share", {"conversion_share": 0.98, "records": None}),
    ("private_linear", "clip", {"clip": 1.6}),
    ("private_linear_attributes", "clip", {"clip": 1.1}),
    ("private_linear_value", "clip", {"clip": 1.1}),
]


@pytest.mark.parametrize("kind", MECHANISMS)
def test_a_field_out_of_its_range_is_refused(kind):
    """Every number has a least one; a scale of noise, an epsilon and a rho are positive."""
    for name, known in params(MECHANISMS[kind]).items():
        default = vars(MECHANISMS[kind]())[name]
        wrong: list[Any] = ["forest"]
        if not isinstance(default, bool | str):
            assert (known.ge is not None) + (known.gt is not None) == 1
            assert not known.calibrated or known.gt == 0 or (known.ge or 0) > 0
            least = [known.gt] if known.ge is None else [known.ge - 1, math.nextafter(known.ge, -1)]
            most = [known.lt] if known.le is None else [known.le + 1]
            wrong = [math.nan, math.inf, -math.inf, *least, *most]
        for value in wrong:
            if value is None or isinstance(default, bool):
                continue
            with pytest.raises(InvalidInput, match=rf"`mechanism\.{name}` must be "):
                MECHANISMS[kind](**{name: value})


@pytest.mark.parametrize(("kind", "name", "fields"), TOGETHER)
def test_fields_that_do_not_fit_together_are_refused(kind, name, fields):
    with pytest.raises(InvalidInput, match=rf"`mechanism\.{name}` must be "):
        MECHANISMS[kind](**fields)


def test_a_plan_has_one_label_space():
    for known in MECHANISMS.values():
        other = "private_knn" if known.label_space != "class" else "private_knn_mean"
        assert space_of([known(), known()], 3) == space_of([known()], 3)
        with pytest.raises(InvalidInput, match="`plan` must be of mechanisms that answer alike"):
            space_of([known(), MECHANISMS[other]()], 3)
