"""A round that is to be asked, with what earlier rounds came to.

Public rows are the same for all rounds of a run, so they stand beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...wall.questions import Round
from ..results import RoundResult
from ..round_files import COUNTED, RoundFiles


@dataclass(frozen=True, kw_only=True)
class AskingRound:
    """A ``planned`` round. ``results``: of all earlier rounds."""

    planned: Round
    results: Sequence[RoundResult]
    folder: RoundFiles

    @property
    def path(self) -> Path:
        return self.folder.round(self.planned.number)

    @property
    def counted(self) -> str:
        """The file, in the run's folder, of features on as many axes as a first count says."""
        return f"round_{self.planned.number}/{COUNTED}"

    @property
    def repeats(self) -> bool:
        """Whether the round asks for sums as the one before it, by the same features.

        Its classifier is then averaged with the earlier one. The features are the same if no
        student was trained in between.
        """
        return self.planned.as_before and not self.results[-1].taught
