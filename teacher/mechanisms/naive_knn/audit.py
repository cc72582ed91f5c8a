"""Naive kNN as the statistical audit sees it (teacher/mechanisms/vote_audit.py)."""

from __future__ import annotations

from dataclasses import replace

from ..vote_laws import Poll
from .mechanism import NaiveKnn


def poll(mechanism: NaiveKnn) -> Poll:
    """The k nearest of all records."""
    return Poll(k=mechanism.k, sigma_vote=mechanism.number("sigma_vote"))


def probe(mechanism: NaiveKnn) -> NaiveKnn:
    """The same code with parameters at which faults show in seconds."""
    return replace(mechanism, k=2, sigma_vote=2.0)
