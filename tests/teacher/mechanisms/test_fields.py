"""Fields of all kinds: what is out of its range is refused by its name, and a price needs noise."""

from __future__ import annotations

import math
from typing import Any

import pytest

from labelwall.teacher.mechanisms.registry import MECHANISMS, space_of
from labelwall.wall.errors import InvalidInput

SCALES = (0.0, -1.0, math.nan, math.inf)
SAMPLING = {"k": (0,), "sample_rate": (0.0, 1.1)}
VALUES = {**SAMPLING, "cells": (1,), "window": (0,), "sigma_screen": (0.0,)}
ATTRIBUTES = {"tau": (0, 63), "threshold": (0.0, 1.0), "margin": (-1.0,), "sigma_vote": SCALES}
LINEAR = {"steps": (0, 101), "noise_multiplier": (*SCALES, 1e3), "clip": (0.0, 2.0, math.nan)}
PURE = {"epsilon": (0.0, -1.0), "noise": ("normal",), "accounting": ("cheap",)}
PATE = {"teachers": (0, 10_001), "classifier": ("forest",)}
WRONG: dict[str, dict[str, tuple[Any, ...]]] = {
    "private_knn": {**SAMPLING, "sigma_vote": SCALES, "sigma_screen": SCALES, "threshold": (-1,)},
    "private_radius": {"share": (0.0, 1.1), "threshold": (-1, 10**6), "sigma_vote": SCALES},
    "naive_knn": {"k": (0,), "sigma_vote": SCALES},
    "lnmax": {**PATE, "scale": SCALES},
    "gnmax": {**PATE, "sigma_vote": SCALES},
    "confident_gnmax": {**PATE, "sigma_screen": SCALES, "sigma_vote": SCALES},
    "ind_knn": {
        "threshold": (0.0, 1.01),
        "sigma_label": SCALES,
        "sigma_count": SCALES,
        "kernel": ("linear",),
        "rho": SCALES,
        "bandwidth": SCALES,
        "near": (-0.1, math.nan),
    },
    "reverse_knn": {
        "centroids": (0, 4097),
        "neighbours": (0, 65),
        "row_neighbours": (0, 65),
        "sigma": SCALES,
        "margin": (-1.0, math.nan),
        "parts": (0, 4097),
    },
    "private_linear": {**LINEAR, "margin": (-0.1, 1.0, math.nan), "gain": (0, 4097)},
    "private_linear_attributes": {**LINEAR, "margin": (-0.1, 1.0)},
    "private_linear_value": LINEAR,
    "radius": {"radius": (-0.1, math.nan), **PURE},
    "batch_knn": {
        **PURE,
        "k": (0,),
        "conversion": ("guess",),
        "conversion_share": (0.0,),
        "records": (0,),
        "records_share": (1.0,),
        "candidates": (0,),
        "candidate_accounting": ("cheap",),
    },
    "private_knn_attributes": {**SAMPLING, **ATTRIBUTES},
    "gnmax_attributes": {"teachers": (0, 10_001), **ATTRIBUTES},
    "private_knn_mean": {**VALUES, "sigma_mean": SCALES},
    "private_knn_median": {**VALUES, "epsilon": SCALES},
}
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
def test_a_field_out_of_its_range_is_refused(kind: str) -> None:
    for name, values in WRONG[kind].items():
        for value in values:
            with pytest.raises(InvalidInput, match=rf"`mechanism\.{name}` must be "):
                MECHANISMS[kind](**{name: value})


@pytest.mark.parametrize(("kind", "name", "fields"), TOGETHER)
def test_fields_that_do_not_fit_together_are_refused(
    kind: str, name: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput, match=rf"`mechanism\.{name}` must be "):
        MECHANISMS[kind](**fields)


def test_a_plan_has_one_label_space() -> None:
    for known in MECHANISMS.values():
        other = "private_knn" if known.label_space != "class" else "private_knn_mean"
        assert space_of([known(), known()], 3) == space_of([known()], 3)
        with pytest.raises(InvalidInput, match="`plan` must be of mechanisms that answer alike"):
            space_of([known(), MECHANISMS[other]()], 3)
