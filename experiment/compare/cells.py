"""What a comparison is: cells, each a method at a budget with a seed, on one split.

Loads without torch.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal

from ...teacher.baselines.baseline_settings import AnyBaseline
from ...teacher.mechanisms.registry import AUTO, MECHANISMS
from ...wall.errors import InvalidInput
from ..config.config import Config
from ..config.settings import build, config_of, merged

Reference = Literal["non_private", "true_labels"]


@dataclass(frozen=True)
class MethodConfig:
    """A method: runs, a privately trained model, or a reference.

    Args:
        name: how tables and plots call it.
        points: for each budget the settings of a run that are not the comparison's, with
            ``epsilon`` for budget.epsilon.
        baseline: a model trained on the private side, by NoisySGD or as a classifier through
            diffprivlib, instead of points.
        epsilons: budgets of the baseline (dimensionless).
        reference: non_private (the student's network trained on all private labels) or true_labels
            (the student trained on the public rows' true labels), instead of points.
        rehearsed: whether the baseline's features and learning rate are chosen on labelled public
            rows.
    """

    name: str
    points: list[dict[str, Any]] = field(default_factory=list)
    baseline: AnyBaseline | None = None
    epsilons: list[float] = field(default_factory=list)
    reference: Reference | None = None
    rehearsed: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w .+=-]{1,80}", self.name):
            rule = "1 to 80 letters, digits, spaces or any of . + = - _"
            raise InvalidInput("methods.name", rule, self.name)
        here = f"methods[{self.name}]"
        if sum(map(bool, (self.points, self.baseline, self.reference))) != 1:
            rule = "points, a baseline or a reference, one of them"
            raise InvalidInput(here, rule, "none or several")
        if bool(self.epsilons) != (self.baseline is not None):
            rule = "a list for a baseline, and for nothing else"
            raise InvalidInput(f"{here}.epsilons", rule, self.epsilons)
        if self.rehearsed and self.baseline is None:
            raise InvalidInput.needless(f"{here}.rehearsed", "only a baseline has it")


@dataclass(frozen=True)
class Methods:
    """What a comparison's settings have beside those of a run.

    Args:
        methods: what is compared.
        seeds: public randomness of the repetitions; tables show medians and ranges over them.
    """

    methods: list[MethodConfig]
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise InvalidInput("seeds", "a list of different seeds", self.seeds)


def require_no_places(config: Config) -> None:
    """Raise InvalidInput for a custodian's directory or what stands for one."""
    for own in ("teacher", "custodian_dir", "ledger", "anchor"):
        if getattr(config, own) is not None:
            raise InvalidInput.needless(own, "each cell of a comparison has its own")


@dataclass(frozen=True)
class Cell:
    """One method at one budget with one seed.

    ``config``: of the run; of a baseline or a reference what runs share with it. ``rehearsed``: as
    in ``MethodConfig``.
    """

    method: str
    config: Config
    baseline: AnyBaseline | None = None
    reference: Reference | None = None
    rehearsed: bool = False

    def __post_init__(self) -> None:
        """Raise InvalidInput if a baseline's epsilon would not hold, or could not be compared.

        Also for a custodian's directory: each cell has its own.
        """
        require_no_places(self.config)
        if self.baseline is None:
            return
        name, data = f"methods[{self.method}].baseline", self.config.data
        if data.labels != "class":
            rule = f"for rows of one class, not for data.labels: {data.labels}"
            raise InvalidInput(name, rule, self.baseline.kind)
        if self.config.privacy.unit != "row":
            kinds = [kind for kind, known in MECHANISMS.items() if known.persons]
            why = "its epsilon is for one row, and privacy.unit is person"
            cure = f"Give points with a mechanism for persons instead: {', '.join(kinds)}."
            raise InvalidInput.needless(name, why, cure)

    @property
    def epsilon(self) -> float | None:
        """The budget, None for a reference without privacy."""
        return None if self.reference else self.config.budget.epsilon

    @property
    def folder(self) -> str:
        """Its place under the comparison's folder."""
        budget = "no_privacy" if self.epsilon is None else f"epsilon_{self.epsilon:g}"
        method = re.sub(r"[^a-z0-9]+", "_", self.method.lower()).strip("_")
        return f"{method}/{budget}/seed_{self.config.seed}"


def cells_of(
    settings: Mapping[str, Any],
    seeds: Sequence[int] | None = None,
    sweep: Mapping[str, Sequence[Any]] | None = None,
) -> list[Cell]:
    """All cells of a comparison's settings, seed by seed, so that an interrupted comparison has
    every method once. ``seeds``: those of the settings when None; ``sweep``: as of ``swept``.

    Raises BadSetting, or the InvalidInput of the field that breaks a rule.
    """
    shared = swept(settings, sweep) if sweep else dict(settings)
    own = {name: shared.pop(name) for name in Methods.__annotations__ if name in shared}
    compared = build(Methods, own if seeds is None else own | {"seeds": list(seeds)})
    cells = [cell for method in compared.methods for cell in _cells(method, shared)]
    return [
        replace(cell, config=replace(cell.config, seed=seed))
        for seed in compared.seeds
        for cell in cells
    ]


def swept(settings: Mapping[str, Any], sweep: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """A comparison's settings with a variant of each method of runs for each value in ``sweep``.

    ``sweep``: values of settings by dotted name; of several settings all combinations are made.
    Baselines and references are no runs, and stay as they are. Raises InvalidInput.
    """
    require_sweep(sweep)
    methods = [method for method in settings["methods"] if not method.get("points")]
    runs = [method for method in settings["methods"] if method.get("points")]
    if not runs:
        raise InvalidInput.needless("sweep", "none of the methods makes runs")
    variants = []
    for method, values in product(runs, product(*sweep.values())):
        given = dict(zip(sweep, values, strict=True))
        words = [f"{name.rpartition('.')[2]}={value}" for name, value in given.items()]
        called = re.sub(r"[^\w .+=-]+", "", " ".join((method["name"], *words)))
        points = [_varied(point, nested(given)) for point in method["points"]]
        variants.append({**method, "name": called, "points": points})
    return {**settings, "methods": [*variants, *methods]}


def _varied(point: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """A point with ``given`` settings; a search for a mechanism keeps those of the mechanism."""
    own = given.get("mechanism", {})
    if "given" in point.get("mechanism", {}) and "kind" not in own:
        given = {**given, "mechanism": {"given": own}}
    return merged(point, given)


def require_sweep(sweep: Mapping[str, Sequence[Any]]) -> None:
    """Raise InvalidInput for a setting that cells may not differ in, or that has no values."""
    for name, values in sweep.items():
        if not values or isinstance(values, str):
            raise InvalidInput(f"sweep[{name}]", "a list of values", values or None)
        if name.partition(".")[0] in ("data", "seed") or name == "budget.epsilon":
            rule = "a setting of runs: one split is compared, and --epsilon and --seeds are options"
            raise InvalidInput("sweep", rule, name)


def nested(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, of those ``given`` by dotted name."""
    settings: dict[str, Any] = {}
    for name, value in given.items():
        for group in reversed(name.split(".")):
            value = {group: value}
        settings = merged(settings, value)
    return settings


def _cells(method: MethodConfig, shared: Mapping[str, Any]) -> Iterator[Cell]:
    for point in method.points:
        yield Cell(method=method.name, config=_config(shared, point.get("epsilon"), point))
    nothing = {"mechanism": {"kind": AUTO}, "rounds": [{}]}
    for epsilon in method.epsilons:
        yield Cell(
            method=method.name,
            config=_config(shared, epsilon, nothing),
            baseline=method.baseline,
            rehearsed=method.rehearsed,
        )
    if method.reference is not None:
        config = _config(shared, None, nothing)
        yield Cell(method=method.name, config=config, reference=method.reference)


def _config(shared: Mapping[str, Any], epsilon: float | None, own: Mapping[str, Any]) -> Config:
    more = {name: value for name, value in own.items() if name != "epsilon"}
    budget = {} if epsilon is None else {"epsilon": epsilon}
    return config_of(merged(merged(shared, more), {"budget": budget}))
