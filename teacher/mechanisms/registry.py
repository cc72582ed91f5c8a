"""All mechanisms, and a mechanism from a ledger's recorded fields. Unknown ones are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union

from pydantic import Discriminator, Tag

from ...wall.errors import InvalidInput, LedgerMismatch
from ...wall.label_kinds import numbered_space
from ...wall.labels import LabelSpace
from ...wall.messages import canonical_json
from ..accounting.plan import Release, Slot, of_type
from .attributes import GnmaxAttributes, PrivateKnnAttributes
from .base import Mechanism
from .batch import BatchKnn, RadiusNeighbours
from .fields import describe
from .ind_knn import IndKnn
from .sums import (
    PrivateLinear,
    PrivateLinearAttributes,
    PrivateLinearValue,
    ReverseKnn,
    Score,
    ScoreAttributes,
    ScoreTables,
    ScoreTablesAttributes,
    ScoreValue,
)
from .values import PrivateKnnMean, PrivateKnnMedian
from .votes import ConfidentGnmax, Gnmax, Lnmax, NaiveKnn, PrivateKnn, PrivateRadius

REGISTERED: tuple[type[Mechanism], ...] = (
    PrivateKnn,  # the default
    PrivateRadius,
    IndKnn,
    ReverseKnn,
    PrivateLinear,
    NaiveKnn,
    Lnmax,
    Gnmax,
    ConfidentGnmax,
    RadiusNeighbours,
    BatchKnn,
    PrivateKnnAttributes,
    GnmaxAttributes,
    PrivateLinearAttributes,
    PrivateKnnMean,
    PrivateKnnMedian,
    PrivateLinearValue,
    Score,
    ScoreAttributes,
    ScoreValue,
    ScoreTables,
    ScoreTablesAttributes,
)

for _kind in REGISTERED:
    describe(_kind, "mechanism")


@dataclass(frozen=True)
class Auto(Mechanism):
    """Chosen by rehearsals on public rows before the run: a word in configurations alone.

    Args:
        kind: `auto`: mechanism, features and their settings are searched for on public rows.
        among: the kind that is searched alone; all that fit the labels when null.
        given: settings of that kind by name, which the search keeps.
    """

    kind: Literal["auto"] = "auto"
    among: str | None = None
    given: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.given and self.among is None:
            raise InvalidInput.needless("mechanism.given", "`mechanism.among` names no kind")

    stages = ()
    open = True
    once_a_round = True  # queries may be left out, as for the mechanisms that it usually becomes

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """Raises InvalidInput: it has no price before it is chosen."""
        rule = "chosen first: `labelwall plan --out FILE` writes it, and a run has its config.yaml"
        raise InvalidInput("mechanism.kind", rule, self.kind)


def _kind_of(value: Any) -> Any:
    """The kind of settings by name, or of a mechanism; None for anything else."""
    return (
        value.get("kind", DEFAULT_KIND) if isinstance(value, dict) else getattr(value, "kind", None)
    )


if TYPE_CHECKING:
    AnyMechanism: TypeAlias = Mechanism
else:
    _tagged = (Annotated[kind, Tag(str(kind.kind))] for kind in (*REGISTERED, Auto))
    AnyMechanism = Annotated[Union[(*_tagged,)], Discriminator(_kind_of)]  # as settings name it


MECHANISMS: dict[str, type[Mechanism]] = {str(m.kind): m for m in REGISTERED}
AUTO = str(Auto.kind)
DEFAULT_KIND = str(REGISTERED[0].kind)
ANSWERING = tuple(str(m.kind) for m in REGISTERED if not m.scores)  # kinds that may be given


def mechanism_class(kind: object) -> type[Mechanism]:
    """The mechanism called ``kind``, or Auto. Raises InvalidInput for an unknown one."""
    kinds: dict[str, type[Mechanism]] = {**MECHANISMS, AUTO: Auto}
    if not isinstance(kind, str) or kind not in kinds:
        raise InvalidInput("mechanism.kind", f"one of {', '.join((*ANSWERING, AUTO))}", kind)
    return kinds[kind]


def from_slot(slot: Slot) -> Mechanism:
    """The mechanism of a plan's slot.

    Raises LedgerMismatch unless the slot's releases are exactly the mechanism's own, and
    InvalidInput for a field out of range.
    """
    if not slot.releases:
        raise LedgerMismatch("the ledger's plan has a slot without releases.")
    try:
        kind = MECHANISMS[str(slot.mechanism["kind"])]
        mechanism = of_type(kind, slot.mechanism)
        releases = mechanism.releases(slot.releases[0].cap, slot.releases[-1].cap)
    except (KeyError, TypeError) as error:
        raise LedgerMismatch(
            "the ledger's plan names a mechanism that this version does not know."
        ) from error
    # in a form in which 1, 1.0 and true differ
    own, planned = (canonical_json([asdict(r) for r in rs]) for rs in (releases, slot.releases))
    if own != planned:
        raise LedgerMismatch("the ledger's plan accounts for other releases than its mechanism's.")
    return mechanism


def space_of(mechanisms: Sequence[Mechanism], count: int) -> LabelSpace:
    """The one label space of a plan's mechanisms. Raises InvalidInput if they have several."""
    kinds = {mechanism.label_space for mechanism in mechanisms}
    if len(kinds) > 1:
        raise InvalidInput("plan", "of mechanisms that answer alike", " and ".join(sorted(kinds)))
    return numbered_space(kinds.pop(), count)
