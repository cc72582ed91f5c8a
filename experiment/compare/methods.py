"""Methods by name on one's own data, as a comparison's settings. Noise follows from the budget,
settings from a rehearsal on PUBLIC rows or from a rule. No private row is read here.
"""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ...student.public_settings import STAGES
from ...student.student_config import BY_FEATURES
from ...teacher.baselines.baseline_settings import BASELINES
from ...teacher.custody.solver import solved, solved_numbers
from ...teacher.mechanisms.registry import AUTO, MECHANISMS, mechanism_class
from ...teacher.mechanisms.votes import teachers_of
from ...wall.datasets.sources import describe, read_public
from ...wall.errors import InvalidInput, meant
from ..config.config import Config
from ..config.options import settings_by
from ..config.settings import config_of, merged
from ..config.tuning import MIN_ROWS
from ..plan import tuning
from ..plan.candidates import PLANNERS
from ..plan.rehearsal import labelled_rows
from .cells import nested, require_no_places, require_sweep

DEFAULT = (AUTO, "private_knn", "gnmax", "linear_noisy_sgd")
PATE = ("gnmax", "lnmax")
Settings = Mapping[str, Any]


def methods_by_name(given: Namespace, files: Settings, dotted: Settings) -> dict[str, Any]:
    """A comparison's settings for the methods and budgets in ``given``. Beside them are students
    without privacy: of all private labels, and of the public rows' own labels if these are known.

    A method whose mechanism has settings in the ``sweep`` keeps these, and rehearses the others.
    Raises as ``settings_by`` and ``config_of``; InvalidInput for a method without settings.
    """
    require_sweep(given.sweep)
    first = nested({name: values[0] for name, values in given.sweep.items()}).get("mechanism", {})
    others = {name: value for name, value in dotted.items() if not first or name != "mechanism"}
    by_budget = _by_budget(given, files, others)
    *_, last = by_budget.values()
    shared = _with_features(merged(last, {"mechanism": {"kind": AUTO}}))
    config = config_of(shared)
    require_no_places(config)
    public = read_public(config.data)
    rows, records = len(public.inputs), config.records(len(public.inputs))
    rehearsed = labelled_rows(public, 1, 0) is not None
    known = _known(config, rehearsed)
    kinds = dict.fromkeys(given.methods or [kind for kind in DEFAULT if kind in known])
    if unknown := [kind for kind in kinds if kind not in known]:
        needs = "" if rehearsed else f"Rehearsals need {MIN_ROWS} labelled public or test rows."
        cure = needs or meant(unknown[0], known)
        if unknown[0] in MECHANISMS and not needs:
            cure = f"`{unknown[0]}` needs settings: a file as configs/compare_banana.yaml is one."
        raise InvalidInput("methods", f"some of {', '.join(known)}", ", ".join(unknown), cure)
    if first and AUTO in kinds:
        rule = "kinds that have the settings of the sweep"
        raise InvalidInput("methods", rule, AUTO, "It chooses its mechanism's settings by itself.")
    methods = []
    for kind in kinds:
        fixed = first and kind not in (*PATE, *BASELINES)
        own = merged({"mechanism": {"kind": kind}}, merged(dotted, {"mechanism": first}))
        budgets = _by_budget(given, files, own) if fixed else by_budget
        methods.append(_method(kind, budgets, rows, records))
    methods.append({"name": "private labels without privacy", "reference": "non_private"})
    if public.labels is not None:
        methods.append({"name": "public labels alone", "reference": "true_labels"})
    return {**shared, "methods": methods, "seeds": given.seeds or [0]}


def _by_budget(given: Namespace, files: Settings, dotted: Settings) -> dict[float, Settings]:
    budgets = [1.0] if given.epsilon is None else given.epsilon
    if not budgets:
        raise InvalidInput("epsilon", "at least one budget", budgets)
    found = {
        epsilon: settings_by(Namespace(**{**vars(given), "epsilon": epsilon}), files, dotted)
        for epsilon in budgets
    }
    # All methods have one student
    alike = {"student": {"backbone": "small_cnn"}}
    return {
        epsilon: merged(settings, alike if _by_features(settings) else {})
        for epsilon, settings in found.items()
    }


def _by_features(settings: Settings) -> bool:
    return settings.get("student", {}).get("backbone") == BY_FEATURES


def _known(config: Config, rehearsed: bool) -> list[str]:
    """The methods that have settings for such rows, by rehearsals if there are any."""
    labels, unit = config.data.labels, config.privacy.unit
    planned = PLANNERS if rehearsed else ()
    mechanisms = {kind: mechanism_class(kind) for kind in (*planned, *PATE)}
    fits = [
        kind
        for kind, known in mechanisms.items()
        if known.label_space == labels and (known.persons or unit == "row")
    ]
    if labels == "class" and unit == "row":
        images = len(describe(config.data).input_shape) == 3
        fits += [kind for kind, known in BASELINES.items() if images or not known.images]
    return [AUTO, *fits]


def _with_features(settings: Settings) -> Settings:
    """Settings of methods that rehearse no features: those of a network for colour images."""
    config = config_of(settings)
    colour = describe(config.data).input_shape[2:] == (3,)
    return (
        merged(settings, {"features": STAGES}) if colour and config.features == "auto" else settings
    )


def _method(
    kind: str, by_budget: Mapping[float, Settings], rows: int, records: int
) -> dict[str, Any]:
    """A method for so many public rows and expected records, at each budget."""
    if kind in BASELINES:
        baseline = BASELINES[kind]().for_records(records, tuning.BATCHES)
        budgets = {"epsilons": [*by_budget], "rehearsed": True}
        return {"name": kind, "baseline": asdict(baseline), **budgets}
    points = []
    for epsilon, settings in by_budget.items():
        point = settings
        if kind in PATE:
            automatic = merged(settings, {"mechanism": {"kind": AUTO}})
            point = _asking(_with_features(automatic), kind, rows, teachers_of(records))
        elif kind not in (AUTO, *map(settings["mechanism"].get, ("kind", "among"))):
            point = {**settings, "mechanism": {"kind": AUTO, "among": kind}}
        points.append({**point, "epsilon": epsilon})
    return {"name": kind, "points": points}


def _asking(settings: Settings, kind: str, rows: int, teachers: int) -> Settings:
    """PATE in one round: as many of ``rows`` queries as its noise allows."""
    counts = [count for count in tuning.QUERIES if count <= rows]
    for count in (*counts, min(tuning.FEWEST, rows)):
        own = {"mechanism": {"kind": kind, "teachers": teachers}, "rounds": [{"queries": count}]}
        point = merged(settings, own)
        schedule = config_of(point).schedule
        noise, *_ = solved_numbers(schedule, solved(schedule))  # of its mechanism, before a score
        if max(noise.values()) <= tuning.NOISE_SHARE * teachers:
            break
    return point
