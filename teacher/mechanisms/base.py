"""What every mechanism offers to the plan, the ledger and the teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from labelwall.teacher.accounting.plan import Release
from labelwall.wall.messages import Outcome, Value

if TYPE_CHECKING:
    from labelwall.teacher.mechanisms.voters import Electorate
    from labelwall.teacher.noise.entropy import Entropy


class Mechanism(Protocol):
    """A frozen dataclass of publishable fields, among them ``kind``, a Literal with a default: its name everywhere.

    It owns both its randomness and its privacy curve (``releases``), from the same fields. One more mechanism is one file
    here and its class in ``registry.AnyMechanism``.
    """

    @property
    def kind(self) -> str: ...

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of its releases for one query, in order; each is charged before it is drawn."""
        ...

    @property
    def once_a_round(self) -> bool:
        """Whether one query serves all public rows of a round, instead of one query a row."""
        ...

    def fields(self) -> dict[str, object]:
        """The publishable fields, as a ledger records them."""
        ...

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """What at most ``asked`` queries with at most ``answered`` labels are, for the accountant."""
        ...

    def planned(self, epsilon: float, delta: float, asked: int) -> Mechanism:
        """With all fields filled in that a budget or a number of planned queries decides, where it has the plan to itself."""
        ...

    def next_stage(self, results: Mapping[str, Value]) -> str | None:
        """The release a query still needs, given what it has; None when it is settled."""
        ...

    def outcome(self, results: Mapping[str, Value]) -> tuple[Outcome, Value]:
        """(outcome, label) of a settled query; a list where rows have attributes (multilabel.py)."""
        ...


class Drawn(Mechanism, Protocol):
    """A mechanism whose releases are paid for one by one, query by query."""

    def draw(
        self, stage: str, voters: Electorate, keys: Sequence[str], entropy: Entropy
    ) -> np.ndarray:
        """Released values of one stage for the queries of ``voters``, whose identities are ``keys`` and charged already.

        int64 [n_queries], or int64 [n_queries, m] where a release is a list of integers.
        """
        ...
