"""What the public side asks, wherever the teacher runs: in this process, in another, or many."""

from pathlib import Path
from typing import Protocol

from .matrices import Matrix, NoisyCounts
from .messages import Answers, ExtractorSpec, Queries


class Answering(Protocol):
    """A teacher, as the public side sees it. Methods raise LabelwallError."""

    def use_extractor(self, spec: ExtractorSpec) -> None:
        """Use these features for later answers."""

    def answer(self, queries: Queries) -> Answers:
        """Noisy labels of public rows."""

    def count(self, matrix: Matrix) -> NoisyCounts:
        """Noisy counts of all records by a public matrix."""

    def export(self, path: Path) -> None:
        """Write the auditors' copy of the ledger."""
