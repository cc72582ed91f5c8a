"""An oracle of Ind-KNN: privacy.md's order of UAI23 Algorithm 3, in exact fractions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

UNITS = 2**40  # of one record's budget
STEP = Fraction(1, 128)  # of a weight


@dataclass
class Record:
    """``features``: integers; ``left``: what it may still lose, zCDP."""

    features: tuple[int, ...]
    label: int
    left: Fraction


def dot(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(int(x) * int(y) for x, y in zip(a, b, strict=True))


def cosine_at_least(x: Sequence[int], q: Sequence[int], bound: Fraction) -> bool:
    """bound > 0; the cosine itself is irrational, its square is not."""
    return dot(x, q) > 0 and Fraction(dot(x, q) ** 2, dot(x, x) * dot(q, q)) >= bound**2


def rbf_at_least(
    nu: float, near: float
) -> Callable[[Sequence[int], Sequence[int], Fraction], bool]:
    def similar(x: Sequence[int], q: Sequence[int], bound: Fraction) -> bool:
        d = tuple(int(a) - int(b) for a, b in zip(x, q, strict=True))
        return math.exp(-max(0.0, dot(d, d) - near**2) / nu**2) >= bound

    return similar


def up(value: Fraction, rho: Fraction) -> Fraction:
    """A payment, rounded up to whole units."""
    return math.ceil(value / rho * UNITS) * rho / UNITS


def noise_scale(sigma_label: Fraction, count: int) -> Fraction:
    """sigma_label sqrt(max(count, 30)), rounded up to a multiple of STEP."""
    steps = 0
    while (steps * STEP) ** 2 < sigma_label**2 * max(count, 30):
        steps += 1
    return steps * STEP


def weight(
    at_least: Callable[[Fraction], bool], left: Fraction, s: Fraction, rho: Fraction
) -> Fraction:
    """The largest multiple of STEP that is at most the kernel and affordable."""
    fitting = [
        a
        for a in range(1, 129)
        if at_least(a * STEP) and up((a * STEP) ** 2 / (2 * s * s), rho) <= left
    ]
    return max(fitting, default=0) * STEP


def query(
    records: list[Record],
    q: Sequence[int],
    similar: Callable[[Sequence[int], Sequence[int], Fraction], bool],
    *,
    tau: Fraction,
    sigma_count: Fraction,
    sigma_label: Fraction,
    rho: Fraction,
    classes: int,
    count_noise: int,
    label_noise: Callable[[int], Sequence[int]],
) -> tuple[int, int]:
    """(released count, released label).

    ``label_noise(scale)``: one integer a class; ``scale``: in units of STEP.
    """
    price = up(1 / (2 * sigma_count**2), rho)
    selected = [r for r in records if r.left >= price and similar(r.features, q, tau)]
    count = len(selected) + count_noise
    s = noise_scale(sigma_label, count)
    sums = [Fraction(0)] * classes
    for r in selected:
        r.left -= price
        w = weight(partial(similar, r.features, q), r.left, s, rho)
        r.left -= up(w * w / (2 * s * s), rho)
        sums[r.label] += w
    noise = label_noise(int(s / STEP))
    noisy = [total + int(z) * STEP for total, z in zip(sums, noise, strict=True)]
    return count, noisy.index(max(noisy))
