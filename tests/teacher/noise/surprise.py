"""How surprising counts are under a law, by a bound that holds for every number of draws."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import rel_entr


def surprise(drawn: np.ndarray, law: np.ndarray) -> float:
    """A bound of the probability that n draws of a law on 0..m lie as far from it as these.

    P(D >= d) <= (e n d / m)^m e^(-n d) for the relative entropy D of the frequencies to the law
    (Agrawal 2020, Theorem 1.2).
    """
    n, m = drawn.size, len(law) - 1
    counts = np.bincount(drawn.ravel(), minlength=len(law))
    ratio = n * rel_entr(counts / n, law).sum() / m
    return math.exp(m * (1 + math.log(ratio) - ratio)) if ratio > 1 else 1.0
