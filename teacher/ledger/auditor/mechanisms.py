"""The auditor's description of each mechanism: its fields, and the prices of its releases.

Restated from docs/privacy.md (the section beside each), on purpose without the teacher's own
mechanisms: a slot of a plan is accepted only if it prices exactly these releases (slots.py). A kind
that is not in ``KINDS`` is refused, so every new mechanism needs an entry here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ....wall.cells import MAX_CELLS
from ....wall.labels.values import STEPS
from . import results
from .results import VOTE, Results
from .values import (
    BOOLEAN,
    LARGEST_NUMBER,
    PROBABILITY,
    Rule,
    integer,
    nullable,
    number,
    number_above,
    one_of,
)

Fields = Mapping[str, Any]
LARGEST_COUNT = 10**12  # of records; a plausible limit, not a guaranteed one
BY_QUERY, BY_BATCH, ONCE = "by the query", "by the batch", "once and in full"


@dataclass(frozen=True)
class Priced:
    """One release of a mechanism. ``parameters``: the curve's; ``charging``: what a charge pays."""

    name: str
    curve: str
    parameters: dict[str, float | int | bool]
    results: Results
    charging: str = BY_QUERY


@dataclass(frozen=True)
class Known:
    """A mechanism's kind.

    ``fields``: rules of the publishable fields. ``releases``: in the order in which a query meets
    them. ``related``: rules between fields, by their text.
    """

    fields: dict[str, Rule]
    releases: Callable[[Fields], list[Priced]]
    related: dict[str, Callable[[Fields], bool]] = field(default_factory=dict)


def _screen(votes: int, threshold: int, sigma: float, gamma: float) -> Priced:
    """[statistic in 0..votes that moves by at most 1, plus noise > threshold]: section 4."""
    parameters = {
        "max_votes": votes,
        "threshold": threshold,
        "sigma": sigma,
        "sampling_probability": gamma,
    }
    return Priced("screen", "screening", parameters, results.bit())


def _winner(sigma: float, gamma: float, swap: bool = True) -> Priced:
    """argmax of votes with Gaussian noise on each: section 5. Without a swap votes only come."""
    parameters: dict[str, float | int | bool] = {"sigma": sigma, "sampling_probability": gamma}
    if not swap:
        parameters["swap"] = False
    return Priced("aggregate", "argmax", parameters, results.label())


def _private_knn(f: Fields) -> list[Priced]:
    gamma = f["sampling_probability"]
    return [
        _screen(f["k"], f["threshold"], f["sigma_screen"], gamma),
        _winner(f["sigma_vote"], gamma),
    ]


def _private_radius(f: Fields) -> list[Priced]:
    """The plurality is cut off at six deviations above the threshold: section 5."""
    gamma, threshold = f["sampling_probability"], f["threshold"]
    most = min(threshold + math.ceil(6 * f["sigma_screen"]), 10**6)
    return [
        _screen(most, threshold, f["sigma_screen"], gamma),
        _winner(f["sigma_vote"], gamma, swap=False),
    ]


def _individual(f: Fields) -> list[Priced]:
    """All answers of a slot together are rho-zCDP: section 12."""
    noisy = results.count_and_label(f["sigma_count"], LARGEST_COUNT)
    return [Priced("individual_budgets", "zcdp", {"rho": f["rho"]}, noisy, ONCE)]


def _cells(f: Fields) -> list[Priced]:
    """A record adds ``parts`` to ``neighbours`` entries, a person no more in length.

    L2 sensitivity parts sqrt(neighbours): sections 13 and 22.
    """
    vote = f["parts"] or 1
    noise, sensitivity = f["sigma"] * vote, vote * math.sqrt(f["neighbours"])
    parameters = {"sigma": noise, "sensitivity": sensitivity, "sampling_probability": 1.0}
    noisy = results.histogram(f["cells"], noise, vote * LARGEST_COUNT)
    return [Priced("histogram", "gaussian", parameters, noisy)]


def _sums(f: Fields) -> list[Priced]:
    """A record adds a vector of length 2^20 and, to one entry more, 2^17: section 21."""
    sensitivity = math.isqrt(2**40 + 2**34 - 1) + 1
    noise = f["sigma"] * sensitivity
    parameters = {
        "sigma": noise,
        "sensitivity": float(sensitivity),
        "sampling_probability": 1.0,
    }
    return [Priced("sum", "gaussian", parameters, results.noisy_sums(2**20, noise, LARGEST_COUNT))]


def _laplace(f: Fields) -> list[Priced]:
    """Votes move by 2 in L1: section 14."""
    parameters = {"scale": f["scale"], "sensitivity": 2.0}
    return [Priced("aggregate", "laplace", parameters, results.label())]


def _unsampled(f: Fields) -> list[Priced]:
    return [_winner(f["sigma_vote"], 1.0)]


def _confident(f: Fields) -> list[Priced]:
    screen = _screen(f["teachers"], f["threshold"], f["sigma_screen"], 1.0)
    return [screen, _winner(f["sigma_vote"], 1.0)]


def _batch(made: Callable[[Fields], Results]) -> Callable[[Fields], list[Priced]]:
    """A batch is epsilon-DP as a whole: section 15."""
    return lambda f: [Priced("batch", "pure", {"epsilon": f["epsilon"]}, made(f), BY_BATCH)]


def _balls(f: Fields) -> Results:
    return results.ball(everyone=f["accounting"] == "queries", radius=f["radius"])


def _nearest(f: Fields) -> Results:
    if f["conversion"] == "none":
        return results.no_ball()
    return results.ball(everyone=f["accounting"] == "queries", radius=None)


def _shares(f: Fields) -> bool:
    """Whether a part of epsilon is left for the labels, where radii are paid for."""
    spent = Fraction(f["conversion_share"])
    spent += Fraction(0 if f["records"] else f["records_share"])
    return f["conversion"] == "none" or spent < 1


def _attributes(voters: str) -> Callable[[Fields], list[Priced]]:
    """Votes in units of 1/4096, noise and L2 sensitivity sqrt(2 tau) in the same: section 16."""

    def releases(f: Fields) -> list[Priced]:
        parameters = {
            "sigma": f["sigma_vote"] * VOTE,
            "sensitivity": math.sqrt(2 * f["tau"]) * VOTE,
            "sampling_probability": f["sampling_probability"] if voters == "k" else 1.0,
        }
        noisy = results.attribute_counts(f[voters], parameters["sigma"])
        return [Priced("counts", "gaussian", parameters, noisy)]

    return releases


def _mean(f: Fields) -> list[Priced]:
    """A sum of values in -STEPS..STEPS, which one record moves by 2 STEPS: section 17."""
    gamma, scale = f["sampling_probability"], 2 * STEPS
    noise = f["sigma_mean"] * scale
    parameters = {"sigma": noise, "sensitivity": float(scale), "sampling_probability": gamma}
    return [*_spread(f), Priced("mean", "gaussian", parameters, results.noisy_sum(f["k"], noise))]


def _median(f: Fields) -> list[Priced]:
    """Log probabilities move within an interval of length epsilon: section 17."""
    parameters = {
        "epsilon": f["epsilon"],
        "sampling_probability": f["sampling_probability"],
    }
    drawn = results.middle_of_a_cell(f["cells"])
    return [*_spread(f), Priced("median", "bounded_range", parameters, drawn)]


def _spread(f: Fields) -> list[Priced]:
    """The screening of values, where there is one."""
    if f["threshold"] is None:
        return []
    return [_screen(f["k"], f["threshold"], f["sigma_screen"], f["sampling_probability"])]


NOISE = number(1e-3, 1e9)  # the curves' range
SMALLER_NOISE = number(1e-3, 1e5)
RATIO = number(0.01, 100)  # of two noises that a budget decided; the noises themselves are priced
PURE = number(1e-6, 1e3)
SHARE = number(1e-3, 0.999)
AT_LEAST_0 = number(0, LARGEST_NUMBER)
VOTERS = integer(1, 10_000)  # classifiers, or neighbours that vote on attributes
CLASSIFIER = one_of("linear", "cnn")
LABEL_NOISE = one_of("laplace", "exponential", "exponential_paper")
ACCOUNTING = one_of("local", "component", "queries")
_PRIVATE_KNN = {
    "k": integer(1, 10**6),
    "threshold": integer(0, 10**6),
    "sigma_screen": NOISE,
    "sigma_vote": NOISE,
    "sampling_probability": PROBABILITY,
    "screen_ratio": RATIO,
}
_PRIVATE_RADIUS = {
    "share": PROBABILITY,
    "threshold": integer(0, 10**6 - 1),
    "sigma_screen": NOISE,
    "sigma_vote": NOISE,
    "sampling_probability": PROBABILITY,
    "screen_ratio": RATIO,
}
_INDIVIDUAL = {
    "kernel": one_of("cosine", "rbf"),
    "threshold": PROBABILITY,
    "bandwidth": number(1e-3, 1e6),
    "near": number(0, 1e6),
    "sigma_label": number(1e-3, 1e6),
    "sigma_count": number(1e-3, 1e6),
    "tables": integer(0, 1000),
    "bits": integer(1, 16),
    "hash_seed": integer(0, 2**31),
    "rho": number(1e-9, 1e6),
    "reuse": BOOLEAN,
}
_CELLS = {
    "cells": integer(1, MAX_CELLS),
    "neighbours": integer(1, 64),
    "sigma": NOISE,
    "margin": AT_LEAST_0,
    "reach": integer(1, 64),
    "parts": nullable(integer(1, 4096)),
}
_CONFIDENT = {
    "teachers": VOTERS,
    "threshold": integer(0, 10_000),
    "sigma_screen": NOISE,
    "sigma_vote": NOISE,
    "classifier": CLASSIFIER,
    "screen_ratio": RATIO,
}
_RADIUS = {
    "radius": number(0, 100),
    "epsilon": PURE,
    "noise": LABEL_NOISE,
    "accounting": ACCOUNTING,
}
_BATCH_KNN = {
    "k": integer(1, 10**6),
    "epsilon": PURE,
    "conversion": one_of("grid", "interactive", "none"),
    "conversion_share": SHARE,
    "records": nullable(integer(1, 10**9)),
    "records_share": SHARE,
    "candidates": integer(1, 256),
    "candidate_accounting": ACCOUNTING,
    "noise": LABEL_NOISE,
    "accounting": ACCOUNTING,
}
_ATTRIBUTES = {
    "tau": integer(1, 62),
    "sigma_vote": SMALLER_NOISE,
    "threshold": number_above(0, 1, below=True),
    "margin": AT_LEAST_0,
}
_VALUES = {
    "k": integer(1, 100_000),
    "sampling_probability": PROBABILITY,
    "cells": integer(2, 1024),
    "threshold": nullable(integer(0, 100_000)),
    "window": integer(1, 1023),
    "sigma_screen": nullable(SMALLER_NOISE),
    "screen_ratio": RATIO,
}
_SCREENED: dict[str, Callable[[Fields], bool]] = {
    "threshold must be at most k": lambda f: f["threshold"] is None or f["threshold"] <= f["k"]
}
_WINDOWED: dict[str, Callable[[Fields], bool]] = {
    **_SCREENED,
    "window must be below cells": lambda f: f["window"] < f["cells"],
    "sigma_screen must be given with a threshold": lambda f: (
        f["threshold"] is None or f["sigma_screen"] is not None
    ),
}
_SUMS = {
    "steps": integer(1, 100),
    "sigma": number(1e-3, 900),
    "clip": number(0.01, 1),
    "axes": nullable(integer(1, 4000)),
    "gain": nullable(integer(1, 64)),
}
_BELOW_1: dict[str, Callable[[Fields], bool]] = {
    "margin must be below 1": lambda f: f["margin"] < 1
}

KINDS: dict[str, Known] = {
    "private_knn": Known(_PRIVATE_KNN, _private_knn, _SCREENED),
    "private_radius": Known(_PRIVATE_RADIUS, _private_radius),
    "ind_knn": Known(
        _INDIVIDUAL,
        _individual,
        {
            "a record's budget must pay for one count": lambda f: (
                2 * Fraction(f["sigma_count"]) ** 2 * Fraction(f["rho"]) >= 1
            ),
        },
    ),
    "reverse_knn": Known(
        _CELLS,
        _cells,
        {
            "neighbours and reach must be at most cells": lambda f: (
                max(f["neighbours"], f["reach"]) <= f["cells"]
            )
        },
    ),
    "private_linear": Known(
        {**_SUMS, "clip": number(0.01, 1.5), "margin": number(0, 1)}, _sums, _BELOW_1
    ),
    "naive_knn": Known({"k": integer(1, LARGEST_COUNT), "sigma_vote": NOISE}, _unsampled),
    "lnmax": Known(
        {"teachers": VOTERS, "scale": NOISE, "classifier": CLASSIFIER},
        _laplace,
    ),
    "gnmax": Known(
        {"teachers": VOTERS, "sigma_vote": NOISE, "classifier": CLASSIFIER},
        _unsampled,
    ),
    "confident_gnmax": Known(
        _CONFIDENT,
        _confident,
        {"threshold must be at most teachers": lambda f: f["threshold"] <= f["teachers"]},
    ),
    "radius": Known(_RADIUS, _batch(_balls)),
    "batch_knn": Known(
        _BATCH_KNN,
        _batch(_nearest),
        related={"a part of epsilon must be left for the labels": _shares},
    ),
    "private_knn_attributes": Known(
        {**_ATTRIBUTES, "k": VOTERS, "sampling_probability": PROBABILITY}, _attributes("k")
    ),
    "gnmax_attributes": Known({**_ATTRIBUTES, "teachers": VOTERS}, _attributes("teachers")),
    "private_linear_attributes": Known({**_SUMS, "margin": number(0, 1)}, _sums, _BELOW_1),
    "private_linear_value": Known(_SUMS, _sums),
    "private_knn_mean": Known({**_VALUES, "sigma_mean": SMALLER_NOISE}, _mean, _WINDOWED),
    "private_knn_median": Known({**_VALUES, "epsilon": PURE}, _median, _WINDOWED),
}
