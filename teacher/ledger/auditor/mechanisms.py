"""The auditor's description of each mechanism: its fields, and the prices of its releases.

Restated from docs/privacy.md (the section beside each), on purpose without the teacher's own
mechanisms: a slot of a plan is accepted only if it prices exactly these releases. A kind that is
not in ``KINDS`` is refused, so every new mechanism needs an entry here. Fields that decide neither
a price nor a result have no range here: whatever they are, the certificate holds.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field

from ....wall.label_kinds import MOST_ATTRIBUTES, STEPS
from ....wall.matrices import MAX_CELLS, MAX_CLASSES
from . import released_values
from .reading import (
    LARGEST_CAP,
    MAX_SLOTS,
    Problem,
    Schema,
    canonical,
    integer,
    require,
    schema,
    shown,
)
from .released_values import VOTE, Results

Fields = Mapping[str, Any]
LARGEST_NOISE = 1e9  # of the curves' range
LARGEST_COUNT = 10**12  # of records; a plausible limit, not a guaranteed one
CLASSES, ATTRIBUTES = range(2, MAX_CLASSES + 1), range(1, MOST_ATTRIBUTES + 1)
ONE_VALUE = range(1, 2)
BY_QUERY, BY_BATCH, ONCE = "by the query", "by the batch", "once and in full"


@dataclass(frozen=True)
class PricedRelease:
    """One release of a mechanism. ``parameters``: the curve's; ``charging``: what a charge pays."""

    name: str
    curve: str
    parameters: dict[str, float | int | bool]
    results: Results
    charging: str = BY_QUERY


@dataclass(frozen=True)
class Known:
    """A kind of mechanism: ``fields``, types of those that decide a price or a result.

    ``releases``: in the order in which a query meets them; ``free``: other publishable fields.
    """

    fields: dict[str, Any]
    releases: Callable[[Fields], list[PricedRelease]]
    free: str = ""


def _require(rule: bool, text: str) -> None:
    if not rule:
        raise Problem(text)


def _screen(votes: int, f: Fields) -> PricedRelease:
    """[statistic in 0..votes that moves by at most 1, plus noise > threshold]: section 4."""
    _require(f["threshold"] <= votes, "threshold must be at most the votes")
    parameters = {
        "max_votes": votes,
        "threshold": f["threshold"],
        "sigma": f["sigma_screen"],
        "sample_rate": f.get("sample_rate", 1.0),
    }
    return PricedRelease("screen", "screening", parameters, released_values.bit())


def _winner(f: Fields, **swap: bool) -> list[PricedRelease]:
    """argmax of votes with Gaussian noise on each: section 5. Without a swap votes only come."""
    gamma = f.get("sample_rate", 1.0)
    parameters = {"sigma": f["sigma_vote"], "sample_rate": gamma, **swap}
    return [PricedRelease("aggregate", "argmax", parameters, released_values.label())]


def _screened(votes: str) -> Callable[[Fields], list[PricedRelease]]:
    """The winner of so many votes, where their plurality is large."""
    return lambda f: [_screen(f[votes], f), *_winner(f)]


def _private_radius(f: Fields) -> list[PricedRelease]:
    """The plurality is cut off at six deviations above the threshold: section 5."""
    most = min(f["threshold"] + math.ceil(6 * f["sigma_screen"]), 10**6)
    return [_screen(most, f), *_winner(f, swap=False)]


def _individual(f: Fields) -> list[PricedRelease]:
    """All answers of a slot together are rho-zCDP: section 12."""
    noisy = released_values.count_and_label(f["sigma_count"], LARGEST_COUNT)
    one_count = 1 / (2 * Fraction(f["sigma_count"]) ** 2)
    _require(Fraction(f["rho"]) >= one_count, "a record's budget must pay for one count")
    return [PricedRelease("individual_budgets", "zcdp", {"rho": f["rho"]}, noisy, ONCE)]


def _cells(f: Fields, name: str = "histogram") -> list[PricedRelease]:
    """L2 sensitivity parts sqrt(neighbours), also of a person: sections 13 and 22."""
    _require(f["neighbours"] <= f["centroids"], "neighbours must be at most centroids")
    vote = f["parts"] or 1
    noise, sensitivity = f["sigma"] * vote, vote * math.sqrt(f["neighbours"])
    _require(noise <= LARGEST_NOISE, "sigma times parts must be in the curves' range")
    parameters = {"sigma": noise, "sensitivity": sensitivity, "sample_rate": 1.0}
    noisy = released_values.histogram(f["centroids"], noise, vote * LARGEST_COUNT)
    return [PricedRelease(name, "gaussian", parameters, noisy)]


def _score(f: Fields) -> list[PricedRelease]:
    """A record or a person adds a vector of length 1 to 2 counts an output: section 13."""
    return _cells({**f, "centroids": 2, "neighbours": 1}, "score")


def _tables(outputs: int) -> Callable[[Fields], list[PricedRelease]]:
    """A record or a person adds a vector of length 1: section 13. ``outputs``: counts of a bin."""
    return lambda f: _cells(
        {**f, "centroids": outputs * (f["thresholds"] + 1), "neighbours": 1}, "score"
    )


def _sums(outputs: range) -> Callable[[Fields], list[PricedRelease]]:
    """A record adds a vector of length 2^20 and, to one entry more, 2^17: section 21."""

    def releases(f: Fields) -> list[PricedRelease]:
        sensitivity = math.isqrt(2**40 + 2**34 - 1) + 1
        noise = f["noise_multiplier"] * sensitivity
        parameters = {"sigma": noise, "sensitivity": float(sensitivity), "sample_rate": 1.0}
        noisy = released_values.noisy_sums(2**20, noise, LARGEST_COUNT, outputs)
        return [PricedRelease("sum", "gaussian", parameters, noisy)]

    return releases


def _laplace(f: Fields) -> list[PricedRelease]:
    """Votes move by 2 in L1: section 14."""
    parameters = {"scale": f["scale"], "sensitivity": 2.0}
    return [PricedRelease("aggregate", "laplace", parameters, released_values.label())]


def _batch(results_of: Callable[[Fields], Results]) -> Callable[[Fields], list[PricedRelease]]:
    """A batch is epsilon-DP as a whole: section 15."""
    return lambda f: [
        PricedRelease("batch", "pure", {"epsilon": f["epsilon"]}, results_of(f), BY_BATCH)
    ]


def _balls(f: Fields) -> Results:
    square = released_values.square_of(f["radius"])
    return released_values.ball(everyone=f["accounting"] == "queries", squares=(square, square))


def _nearest(f: Fields) -> Results:
    """Forms of results: without a conversion every query counts, and the radius is none, -1."""
    nowhere = f["conversion"] == "none"
    squares = (-1, -1) if nowhere else (0, released_values.LARGEST_SQUARE)
    return released_values.ball(everyone=nowhere or f["accounting"] == "queries", squares=squares)


def _attributes(voters: str) -> Callable[[Fields], list[PricedRelease]]:
    """Votes, noise and L2 sensitivity sqrt(2 tau) in units of 1/4096: section 16."""

    def releases(f: Fields) -> list[PricedRelease]:
        parameters = {
            "sigma": f["sigma_vote"] * VOTE,
            "sensitivity": math.sqrt(2 * f["tau"]) * VOTE,
            "sample_rate": f["sample_rate"] if voters == "k" else 1.0,
        }
        noisy = released_values.attribute_counts(f[voters], parameters["sigma"])
        return [PricedRelease("counts", "gaussian", parameters, noisy)]

    return releases


def _mean(f: Fields) -> list[PricedRelease]:
    """A sum of values in -STEPS..STEPS, which one record moves by 2 STEPS: section 17."""
    gamma, scale = f["sample_rate"], 2 * STEPS
    noise = f["sigma_mean"] * scale
    parameters = {"sigma": noise, "sensitivity": float(scale), "sample_rate": gamma}
    return [
        *_spread(f),
        PricedRelease("mean", "gaussian", parameters, released_values.noisy_sum(f["k"], noise)),
    ]


def _median(f: Fields) -> list[PricedRelease]:
    """Log probabilities move within an interval of length epsilon: section 17."""
    parameters = {"epsilon": f["epsilon"], "sample_rate": f["sample_rate"]}
    drawn = released_values.middle_of_a_cell(f["cells"])
    return [*_spread(f), PricedRelease("median", "bounded_range", parameters, drawn)]


def _spread(f: Fields) -> list[PricedRelease]:
    """The screening of values, where there is one."""
    if f["threshold"] is None:
        return []
    _require(f["sigma_screen"] is not None, "sigma_screen must be given with a threshold")
    return [_screen(f["k"], f)]


def number(low: float, high: float) -> Any:
    """The type of finite numbers, written as integers or floats."""
    return Annotated[float, Field(ge=low, le=high)]


NOISE = number(1e-3, LARGEST_NOISE)
SMALLER_NOISE = number(1e-3, 1e5)
TEACHERS = {"teachers": integer(1, 10_000)}
EPSILON = {"epsilon": number(1e-6, 1e3)}
ACCOUNTING = {"accounting": Literal["local", "component", "queries"]}
GAMMA = {"sample_rate": Annotated[float, Field(gt=0, le=1)]}
SCREEN = {"threshold": integer(0, 10**6), "sigma_screen": NOISE}
WINNER = {"sigma_vote": NOISE}
SPREAD = {
    "k": integer(1, 100_000),
    "threshold": integer(0, 100_000) | None,
    "sigma_screen": SMALLER_NOISE | None,
    **GAMMA,
}
COUNTS = {"tau": integer(1, MOST_ATTRIBUTES), "sigma_vote": SMALLER_NOISE}
LINEAR = {"noise_multiplier": number(1e-3, 900)}  # times the sensitivity within the curves' range
STEPS_OF_SUMS = "steps clip axes gain"
VOTES = {"sigma": NOISE, "parts": integer(1, 4096) | None}
CELLS = {"centroids": integer(1, MAX_CELLS), "neighbours": integer(1, 64), **VOTES}

SCORES = "score", "score_attributes", "score_value"
TABLES = {"score_tables": _tables(1), "score_tables_attributes": _tables(2)}
KINDS: dict[str, Known] = {
    "private_knn": Known(
        {"k": integer(1, 10**6), **SCREEN, **WINNER, **GAMMA}, _screened("k"), "screen_ratio"
    ),
    "private_radius": Known(
        {**SCREEN, "threshold": integer(0, 10**6 - 1), **WINNER, **GAMMA},
        _private_radius,
        "share screen_ratio",
    ),
    "ind_knn": Known(
        {"rho": number(1e-9, 1e6), "sigma_count": number(1e-3, 1e6)},
        _individual,
        "kernel threshold bandwidth near sigma_label tables bits hash_seed reuse",
    ),
    "reverse_knn": Known(CELLS, _cells, "margin row_neighbours"),
    **dict.fromkeys(SCORES, Known(VOTES, _score)),
    **{
        kind: Known({"thresholds": integer(1, 63), **VOTES}, tables)
        for kind, tables in TABLES.items()
    },
    "private_linear": Known(LINEAR, _sums(CLASSES), f"{STEPS_OF_SUMS} margin"),
    "naive_knn": Known(WINNER, _winner, "k"),
    "lnmax": Known({"scale": NOISE}, _laplace, "teachers classifier"),
    "gnmax": Known(WINNER, _winner, "teachers classifier"),
    "confident_gnmax": Known(
        {**TEACHERS, **SCREEN, **WINNER}, _screened("teachers"), "classifier screen_ratio"
    ),
    "radius": Known({"radius": number(0, 100), **EPSILON, **ACCOUNTING}, _batch(_balls), "noise"),
    "batch_knn": Known(
        {"conversion": Literal["grid", "interactive", "none"], **EPSILON, **ACCOUNTING},
        _batch(_nearest),
        "k conversion_share records records_share candidates candidate_accounting noise",
    ),
    "private_knn_attributes": Known(
        {"k": integer(1, 10_000), **COUNTS, **GAMMA}, _attributes("k"), "threshold margin"
    ),
    "gnmax_attributes": Known({**TEACHERS, **COUNTS}, _attributes("teachers"), "threshold margin"),
    "private_linear_attributes": Known(LINEAR, _sums(ATTRIBUTES), f"{STEPS_OF_SUMS} margin"),
    "private_linear_value": Known(LINEAR, _sums(ONE_VALUE), STEPS_OF_SUMS),
    "private_knn_mean": Known(
        {**SPREAD, "sigma_mean": SMALLER_NOISE}, _mean, "cells window screen_ratio"
    ),
    "private_knn_median": Known(
        {**SPREAD, **EPSILON, "cells": integer(2, 1024)}, _median, "window screen_ratio"
    ),
}
# What is the same for all rows of a person together as for one row (docs/privacy.md, section 22).
PERSONS = frozenset(
    (
        *("private_knn", "private_knn_attributes", "private_knn_mean", "private_knn_median"),
        *("private_radius", "naive_knn", "ind_knn", "reverse_knn", "radius", "batch_knn"),
        *SCORES,
        *TABLES,
        *("private_linear", "private_linear_attributes", "private_linear_value"),
        *("lnmax", "gnmax", "confident_gnmax", "gnmax_attributes"),
    )
)


class AuditedSlot(Schema):
    mechanism: dict[str, Any]
    releases: Annotated[list[dict[str, Any]], Field(min_length=1)]


class PlanSchema(Schema):
    epsilon: Annotated[float, Field(gt=0)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    slots: Annotated[list[AuditedSlot], Field(min_length=1, max_length=MAX_SLOTS)]
    unit: Literal["row", "person"]
    periods: integer(1, MAX_SLOTS)  # type: ignore[valid-type]


def check_plan(plan: dict[str, Any]) -> list[list[PricedRelease]]:
    """Each slot's releases, restated from its mechanism.

    Raises Problem where a slot prices something else, or a field breaks its rule.
    """
    require("plan", plan, PlanSchema)
    restated = []
    for place, slot in enumerate(plan["slots"]):
        try:
            restated.append(check_slot(slot))
            if plan["unit"] == "person" and slot["mechanism"]["kind"] not in PERSONS:
                raise Problem("the mechanism must be one whose price holds for persons")
        except Problem as problem:
            raise Problem(f"slot {place} of the plan: {problem}") from problem
    if len(restated) % plan["periods"]:
        raise Problem("the plan's periods do not have as many slots each")
    return restated


def check_slot(slot: Fields) -> list[PricedRelease]:
    """The restated releases of a plan's slot. Raises Problem unless those that it records are the
    same ones, in every name, type and digit, with a cap.
    """
    restated, recorded = priced(slot["mechanism"]), slot["releases"]
    if len(restated) != len(recorded):
        names = ", ".join(release.name for release in restated)
        raise Problem(f"the mechanism releases {names}, the plan prices something else")
    for expected, release in zip(restated, recorded, strict=True):
        _check_release(expected, release)
    return restated


def priced(mechanism: object) -> list[PricedRelease]:
    """The releases of a recorded mechanism. Raises Problem for an unknown kind, and for a field
    that is missing, unknown, of another type or out of range.
    """
    kind = mechanism.get("kind") if type(mechanism) is dict else None
    if type(kind) is not str or kind not in KINDS:
        raise Problem(f"the mechanism is of an unknown kind: {shown(kind)}")
    rules = KINDS[kind]
    free = dict.fromkeys(rules.free.split(), int | float | str | bool | None)
    return rules.releases(
        require(kind, mechanism, schema(kind, {"kind": str, **free, **rules.fields}))
    )


def _check_release(expected: PricedRelease, release: Fields) -> None:
    prepaid, batch = expected.charging == ONCE, expected.charging == BY_BATCH
    cap = {key: value for key, value in release.items() if key == "cap"}
    caps = Literal[1] if prepaid else integer(0, LARGEST_CAP)
    require(expected.name, cap, schema("cap", {"cap": caps}))
    named = {"name": expected.name, "curve": expected.curve, "parameters": expected.parameters}
    restated = canonical({**named, "prepaid": prepaid, "batch": batch, **cap})
    if canonical(release) != restated:
        found = shown(canonical(release))
        raise Problem(f"the plan prices {found}, but its mechanism releases {restated}")
