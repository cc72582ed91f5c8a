"""Methods by name on one's own data: their noise from the budget, their settings from a rehearsal
on PUBLIC rows or from a rule. No private row is read here.
"""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...student.settings import STAGES
from ...teacher.baselines.config import BASELINES, AnyBaseline, GradientDescent
from ...teacher.custody.solver import solved, solved_numbers
from ...teacher.mechanisms.registry import AUTO, mechanism_class
from ...teacher.mechanisms.votes import teachers_of
from ...wall.datasets.sources import describe, read_public
from ...wall.errors import InvalidInput
from ..config.config import Config
from ..config.options import settings_by
from ..config.own import MIN_ROWS
from ..config.settings import config_of, merged
from ..plan.candidates import PLANNERS
from ..plan.rehearsal import labelled_rows
from .config import Cell

DEFAULT = (AUTO, "private_knn", "gnmax", "linear_noisy_sgd")
PATE = ("gnmax", "lnmax")
# PATE is asked as often as leaves the noise below that share of the classifiers, and at least the
# fewest times.
SHARE = 0.2
QUERIES, FEWEST = (2000, 1000, 600, 300, 150, 80, 40, 20), 10
BATCHES = 4  # of all expected records: NoisySGD's sampling rate is one over it


def own_cells(given: Namespace, files: Mapping[str, Any], dotted: Mapping[str, Any]) -> list[Cell]:
    """All cells of the methods and budgets in ``given``, with what privacy costs: the student of
    all private labels, and of the public rows' own labels where these are known.

    Raises as ``settings_by`` and ``config_of``; InvalidInput for a method without settings.
    """
    cells, budgets = list[Cell](), given.epsilon or [1.0]
    for given.epsilon in dict.fromkeys(budgets):
        settings = settings_by(given, files, dotted)
        shared = merged(settings, {"mechanism": {"kind": AUTO}})
        plain = _with_features(shared)
        config = config_of(plain)
        public = read_public(config.data)
        known = _known(config, labelled_rows(public, MIN_ROWS, 1, 0) is not None)
        rows = len(public.inputs)
        methods = list(dict.fromkeys(given.methods or [kind for kind in DEFAULT if kind in known]))
        for kind in methods:
            if kind not in known:
                cure = f"Rehearsals need {MIN_ROWS} labelled public or test rows."
                raise InvalidInput("methods", f"some of {', '.join(known)}", kind, cure)
            if kind == AUTO:
                cells.append(Cell(kind, config_of(settings)))
            elif kind in PATE:
                cells.append(Cell(kind, _asking(plain, kind, rows, config.records(rows))))
            elif kind in BASELINES:
                baseline = _baseline(kind, config.records(rows))
                cells.append(Cell(kind, config, baseline, rehearsed=True))
            else:
                among = {"mechanism": {"kind": AUTO, "among": kind}}
                cells.append(Cell(kind, config_of(merged(shared, among))))
    cells.sort(key=lambda cell: methods.index(cell.method))
    cells.append(Cell("private labels without privacy", config, reference="non_private"))
    if public.labels is not None:
        cells.append(Cell("public labels alone", config, reference="true_labels"))
    seeds = given.seeds or [0]
    return [replace(c, config=replace(c.config, seed=seed)) for seed in seeds for c in cells]


def _known(config: Config, rehearsed: bool) -> list[str]:
    """The methods that have settings for such rows, by rehearsals where there are any."""
    labels, unit = config.data.labels, config.privacy.unit
    planned = [kind for kind, plan in PLANNERS.items() if plan is not None and rehearsed]
    mechanisms = {kind: mechanism_class(kind) for kind in (*planned, *PATE)}
    fits = [
        kind
        for kind, known in mechanisms.items()
        if known.label_space == labels and (known.persons or unit == "row")
    ]
    if labels == "class" and unit == "row":
        images = len(describe(config.data).input_shape) == 3
        fits += [kind for kind in BASELINES if images or kind != "noisy_sgd"]
    return [AUTO, *fits]


def _with_features(shared: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of methods that rehearse no features: those of a network for colour images."""
    config = config_of(shared)
    colour = describe(config.data).input_shape[2:] == (3,)
    return merged(shared, {"features": STAGES}) if colour and config.features == "auto" else shared


def _asking(shared: Mapping[str, Any], kind: str, rows: int, records: int) -> Config:
    """PATE in one round: as many of ``rows`` queries as its noise allows."""
    teachers = teachers_of(records)
    for count in (*(count for count in QUERIES if count <= rows), min(FEWEST, rows)):
        own = {"mechanism": {"kind": kind, "teachers": teachers}, "rounds": [{"queries": count}]}
        config = config_of(merged(shared, own))
        schedule = config.schedule
        noise, *_ = solved_numbers(schedule, solved(schedule))  # of its mechanism, before a score
        if max(noise.values()) <= SHARE * teachers:
            break
    return config


def _baseline(kind: str, records: int) -> AnyBaseline:
    baseline: AnyBaseline = BASELINES[kind]()
    if isinstance(baseline, GradientDescent):
        batch = max(1, records // BATCHES)
        return replace(baseline, batch_size=batch, expected_records=records)
    return baseline
