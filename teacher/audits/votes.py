"""The statistical audit of noisy votes on the worst-case pairs of their ``poll``.

A mechanism's ``poll`` describes how votes are counted, and on which pairs (vote_laws.py). Validity:
harness.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ..mechanisms.voters import Voters
from ..mechanisms.votes import AGGREGATE, SCREEN, Votes
from ..noise.entropy import Entropy, SystemEntropy
from .harness import (
    EmpiricalFinding,
    Pair,
    ReleaseFinding,
    certified,
    check_audit,
    expected_bound,
    sharpest_bound,
)
from .polls import poll as poll_of
from .vote_laws import JOINT, laws, repeated

_QUERIES_PER_CALL = 1024
_BITS_PER_CALL = 1 << 22  # inclusion bits


def audit_votes(
    mechanism: Votes,
    *,
    delta: float,
    trials: int,
    confidence: float = 0.95,
    queries: int = 4,
    releases: Sequence[str] = (),
) -> EmpiricalFinding:
    """Audit the screening, the aggregation, and ``queries`` composed queries with both.

    ``releases`` restricts this to some of them; a mechanism without screening has its aggregation
    only. Each is run on the pair with the largest expected bound, and on an empty data set and its
    neighbour, where the release is only noise. ``trials``: queries drawn for each release on each
    data set (a trial of JOINT takes ``queries`` of them); about 50 us a query at k = 10.

    Raises InvalidInput for fewer than 8 trials, or delta or confidence outside (0, 1).
    """
    check_audit(delta, trials, confidence, queries)
    poll = poll_of(mechanism)
    found = []
    releases = releases or poll.parts
    error = (1 - confidence) / (2 * len(releases))
    pairs = sharpest_pairs(mechanism, delta=delta, trials=trials, error=error, queries=queries)
    for part in releases:
        pair, expected = pairs[part]
        repeats = queries if part == JOINT else 1

        def outcomes(at: Pair, added: bool, n: int, part: str = part) -> np.ndarray:
            return run(mechanism, part, at, added, n, SystemEntropy())

        n = trials // repeats
        at, bound = sharpest_bound(
            outcomes,
            (pair, poll.empty(part)),
            queries=repeats,
            trials=n,
            delta=delta,
            error=error,
        )
        claim = claimed(mechanism, part, repeats, delta)
        found.append(ReleaseFinding(part, repeats, n, at, bound, expected, claim))
    return EmpiricalFinding(mechanism.fields(), delta, confidence, tuple(found))


def claimed(mechanism: Votes, part: str, queries: int, delta: float) -> float:
    """The certified epsilon of exactly ``queries`` releases of this part."""
    alone = part == AGGREGATE and SCREEN in mechanism.stages
    caps = (0 if alone else queries, 0 if part == SCREEN else queries)
    return certified(mechanism, mechanism.releases(*caps), delta)


def sharpest_pairs(
    mechanism: Votes, *, delta: float, trials: int, error: float, queries: int
) -> dict[str, tuple[Pair, float]]:
    """For each part the pair with the largest expected bound, and that bound, from the exact laws.

    The pair that maximises the curve may need an event too rare for the given trials, so this
    maximises the bound that they can show. Ties, also at zero, go to the largest chi-square
    distance.
    """
    poll = poll_of(mechanism)
    best = {part: (poll.empty(part), -1.0, 0.0) for part in poll.parts}
    for pair in poll.candidates():
        for part, (without, added) in laws(poll, pair).items():
            repeats = queries if part == JOINT else 1
            sides = repeated(without, repeats), repeated(added, repeats)
            expected = expected_bound(*sides, trials // repeats, delta, error)
            distance = float(
                np.sum((added - without) ** 2 / np.maximum(without, 1e-300), where=without > 0)
            )
            if (expected, distance) > best[part][1:]:
                best[part] = pair, expected, distance
    return {part: (pair, expected) for part, (pair, expected, _) in best.items()}


def run(
    mechanism: Votes, part: str, pair: Pair, added: bool, n: int, entropy: Entropy
) -> np.ndarray:
    """Outcomes of ``n`` independent queries on one side of a pair, by the mechanism's own draws.

    int64 [n]: a bit for SCREEN, a class for AGGREGATE (drawn as after a screening that passed),
    label + 1 for JOINT.
    """
    voters = poll_of(mechanism).voters(pair, added, n)
    block = max(1, min(_QUERIES_PER_CALL, _BITS_PER_CALL // max(1, len(voters.labels))))
    # the first query is drawn alone: its search serves the identical ones that follow
    starts = [0, *range(1, n, block), n]
    pieces = [
        _settle(mechanism, part, voters, range(a, b), entropy) for a, b in pairwise(starts) if b > a
    ]
    return np.concatenate(pieces)


def _settle(
    mechanism: Votes, part: str, voters: Voters, rows: range, entropy: Entropy
) -> np.ndarray:
    """Outcomes of some queries, taken through the stages as by a teacher: int64 [n_rows]."""
    call = secrets.token_hex(8)  # as in a teacher, no identity is used twice
    keys = [f"{call}-{row}" for row in rows]
    results: list[dict[str, int]] = [{SCREEN: 1} if part == AGGREGATE else {} for _ in rows]
    for stage in mechanism.stages[:1] if part == SCREEN else mechanism.stages:
        due = [i for i, known in enumerate(results) if mechanism.next_stage(known) == stage]
        if due:
            asked = voters.select([rows[i] for i in due])
            drawn = mechanism.draw(stage, asked, [keys[i] for i in due], entropy)
            for i, value in zip(due, drawn.tolist(), strict=True):
                results[i][stage] = value
    if part == JOINT:
        return np.array([mechanism.outcome(known)[1] + 1 for known in results], dtype=np.int64)
    return np.array([known[part] for known in results], dtype=np.int64)
