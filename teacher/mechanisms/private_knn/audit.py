"""Private-kNN as the statistical audit sees it (teacher/mechanisms/vote_audit.py)."""

from __future__ import annotations

from dataclasses import replace

from ..vote_laws import Poll
from .mechanism import PrivateKnn


def poll(mechanism: PrivateKnn) -> Poll:
    """The k nearest of a Poisson sample, screened."""
    return Poll(
        k=mechanism.k,
        sigma_vote=mechanism.number("sigma_vote"),
        threshold=mechanism.threshold,
        sigma_screen=mechanism.number("sigma_screen"),
        sampling_probability=mechanism.sampling_probability,
    )


def probe(mechanism: PrivateKnn) -> PrivateKnn:
    """The same code with parameters at which faults show in seconds.

    The loss of one query of a practical configuration is too small for any affordable number of
    trials.
    """
    return replace(
        mechanism, k=3, threshold=2, sigma_screen=1.0, sigma_vote=2.0, sampling_probability=0.5
    )
