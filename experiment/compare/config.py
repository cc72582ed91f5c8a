"""What a comparison is: methods at points of privacy, on one split with one student.

Loads without torch.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from ...student.config import StudentConfig
from ...teacher.baselines.config import AnyBaseline
from ...teacher.mechanisms.registry import MECHANISMS, AnyMechanism
from ...teacher.mechanisms.votes import PrivateKnn
from ...wall.datasets.config import DataConfig
from ...wall.errors import InvalidInput
from ..config.config import Config
from ..config.groups import (
    BudgetConfig,
    CapsConfig,
    Computing,
    FirstFeatures,
    PrivacyConfig,
    RoundConfig,
)
from ..config.options import read
from ..config.settings import build, merged

Reference = Literal["non_private", "true_labels"]


@dataclass(frozen=True)
class PointConfig:
    """One point of a method that answers queries: a budget and what spends it.

    Args:
        epsilon: cap on the certified epsilon (dimensionless).
        mechanism: the private mechanism of all rounds that name none.
        caps: caps of that mechanism, over all those rounds.
        rounds: what happens, in order.
        whiten: principal axes for this point, where they are not the comparison's (a count).
    """

    epsilon: float
    rounds: list[RoundConfig]
    mechanism: AnyMechanism = field(default_factory=PrivateKnn)
    caps: CapsConfig = field(default_factory=CapsConfig)
    whiten: int | None = None


@dataclass(frozen=True)
class MethodConfig:
    """A method: rounds of a mechanism, a privately trained model, or a reference.

    Args:
        name: how tables and plots call it.
        points: budgets and mechanisms, for a method that labels public rows.
        baseline: a model trained on the private side, by NoisySGD or as a classifier through
            diffprivlib, instead of points.
        epsilons: budgets of the baseline (dimensionless).
        reference: non_private (the student's network trained on all private labels) or true_labels
            (the student trained on the public rows' true labels), instead of points.
    """

    name: str
    points: list[PointConfig] = field(default_factory=list)
    baseline: AnyBaseline | None = None
    epsilons: list[float] = field(default_factory=list)
    reference: Reference | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w .+-]{1,40}", self.name):
            raise InvalidInput(
                "methods.name", "1 to 40 letters, digits, spaces or any of . + - _", self.name
            )
        here = f"methods[{self.name}]"
        if sum(map(bool, (self.points, self.baseline, self.reference))) != 1:
            rule = "points, a baseline or a reference, one of them"
            raise InvalidInput(here, rule, "none or several")
        if bool(self.epsilons) != (self.baseline is not None):
            rule = "a list for a baseline, and for nothing else"
            raise InvalidInput(f"{here}.epsilons", rule, self.epsilons)
        if not all(epsilon > 0 for epsilon in self.epsilons):
            raise InvalidInput(f"{here}.epsilons", "positive", self.epsilons)


@dataclass(frozen=True)
class CompareConfig(FirstFeatures, Computing):
    """One comparison.

    Args:
        data: where private, public and test rows come from; the same for all methods.
        methods: what is compared.
        delta: failure probability of every budget.
        privacy: what every budget holds for: rows, or persons with several rows.
        seeds: public randomness of the repetitions; tables show medians and ranges over them.
        student: the public-side network and its training, for all methods that have a student.
    """

    data: DataConfig
    methods: list[MethodConfig]
    delta: float = 1e-5
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    student: StudentConfig = field(default_factory=StudentConfig)

    def __post_init__(self) -> None:
        names = [method.name for method in self.methods]
        if not names or len(set(names)) != len(names):
            raise InvalidInput("methods", "a list of methods with different names", names)
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise InvalidInput("seeds", "a list of different seeds", self.seeds)
        for method in self.methods:
            if method.baseline is not None:
                self._require_rows_of_classes(f"methods[{method.name}].baseline", method.baseline)
            for point in method.points:
                self.run_config(point, self.seeds[0], "")  # every rule of a run's own settings

    def run_config(self, point: PointConfig, seed: int, custodian_dir: str) -> Config:
        """The experiment behind one point and seed, as `run` would have it."""
        shared = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        for own in ("methods", "delta", "seeds"):
            del shared[own]
        if point.whiten is not None:
            shared["whiten"] = point.whiten
        return Config(
            rounds=point.rounds,
            budget=BudgetConfig(point.epsilon, self.delta),
            mechanism=point.mechanism,
            caps=point.caps,
            seed=seed,
            custodian_dir=custodian_dir,
            **shared,
        )

    def _require_rows_of_classes(self, name: str, baseline: AnyBaseline) -> None:
        """Raises InvalidInput where a baseline's epsilon would not hold, or not be comparable."""
        if self.data.labels != "class":
            rule = f"for rows of one class, not for data.labels: {self.data.labels}"
            raise InvalidInput(name, rule, baseline.kind)
        if self.privacy.unit != "row":
            kinds = [kind for kind, known in MECHANISMS.items() if known.persons]
            rule = (
                "left out with privacy.unit: person, as its epsilon is for one row; "
                f"instead points with a mechanism for persons: {', '.join(kinds)}"
            )
            raise InvalidInput(name, rule, baseline.kind)


def parse_comparison(args: Sequence[str]) -> tuple[CompareConfig, str]:
    """(settings, folder for the results), of `--config FILE` and every field of CompareConfig.

    Prints a help that ``args`` ask for, and exits. Raises BadSetting, or the InvalidInput of the
    field that breaks a rule.
    """
    does = (
        "Run every method of a file on the same split, students and budgets; one table, "
        "comparison.json and plots. The same command continues a comparison that was interrupted."
    )
    folder = "folder for the results; the same folder resumes"
    options = {"--out": {"required": True, "help": folder}}
    given, files, dotted = read(args, "compare", does, options, {"": CompareConfig})
    return build(CompareConfig, merged(files, dotted)), given.out
