"""The configuration of a run. Loads without torch, so that `--help` and `plan` answer at once."""

from dataclasses import dataclass, fields, replace
from typing import Self, TypeVar

from ...student.public_settings import PublicSide, student_beside
from ...teacher.custody.private_settings import PrivateSide
from ...teacher.custody.schedule import Schedule
from ...wall.datasets.texts import HASHED
from ...wall.errors import InvalidInput
from ...wall.questions import SumsForm

Part = TypeVar("Part", bound="PrivateSide | PublicSide")


@dataclass(frozen=True, kw_only=True)
class Config(PrivateSide, PublicSide):
    """One experiment: its entry takes all of it, and hands on what each side needs."""

    def __post_init__(self) -> None:
        # Each raises InvalidInput by its own rules
        _ = self._part(PrivateSide), self._part(PublicSide)
        asked = [m for m in self.schedule.mechanisms() if not m.open and not m.scores]
        linear = all(isinstance(mechanism.query_form, SumsForm) for mechanism in asked)
        if self.balanced and not (linear and self.data.labels == "class"):
            raise InvalidInput.needless("balanced", "it needs classes and `private_linear`")

    def private_side(self) -> PrivateSide:
        return self._part(PrivateSide)

    def public_side(self) -> PublicSide:
        return self.settled()._part(PublicSide)

    def settled(self) -> Self:
        """With the student that `auto` stands for, unless a rehearsal decides it."""
        student = student_beside(self.student, self.features)
        return self if self.open or student == self.student else replace(self, student=student)

    def _part(self, side: type[Part]) -> Part:
        return side(**{entry.name: getattr(self, entry.name) for entry in fields(side)})

    def scheduled(self, schedule: Schedule) -> Self:
        """With the numbers that a ledger or the budget gave its ``schedule``."""
        return replace(
            self, mechanism=schedule.mechanism, rounds=schedule.rounds, evaluate=schedule.evaluate
        )

    def chosen(self, known: "Config") -> Self:
        """With the method of a configuration that was chosen for this one; with the budget and the
        score, too, where services chose it.
        """
        fixed = self.features not in ("auto", known.features)
        private = self if self.teacher is None else known
        white = self.data.white if self.teacher is None else self.data.white or known.data.white
        texts = known.data.text_features
        if texts != HASHED:  # both were rehearsed
            texts = self.data.text_features
        return replace(
            self,
            data=replace(self.data, text_features=texts, white=white),
            budget=private.budget,
            evaluate=private.evaluate,
            privacy=private.privacy,
            mechanism=known.mechanism,
            rounds=known.rounds,
            caps=known.caps,
            features=self.features if fixed else known.features,
            box=self.box if fixed else known.box,
            whiten=self.whiten or known.whiten,
            by_count=self.by_count if fixed else known.by_count,
            student=student_beside(self.student, self.features if fixed else known.features),
        )
