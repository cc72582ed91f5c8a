"""report.html and MODEL_CARD.md of a finished run, from the run folder alone.

The same run folder gives the same bytes. No rows are opened, nor the custodian's directory. The
card has the Hugging Face Hub's form: front matter, then sections.
"""

import html
import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from ...student.measures import BINS
from ...student.results import read
from ...student.student_model import StudentInfo, unpack
from ...teacher.accounting.accountant import certificates, certified_epsilon, smallest_certified
from ...teacher.accounting.conversion import round_up
from ...teacher.accounting.risk import BOUNDS, PRIORS, Risk, meaning, share
from ...teacher.ledger.auditor.auditor import Finding, audit
from ...wall.datasets.data_config import DataConfig
from ...wall.errors import LabelwallError, MissingData, listed
from ...wall.files import ROWS, write_file
from ...wall.guarantee import POOLED
from ...wall.labels import LabelSpace
from ...wall.messages import RELEASED
from ..config.config import Config
from ..config.own import run_name
from ..config.settings import load_config
from ..run.lines import uneven, untested
from ..run.run_folder import RunFolder
from ..run.summary import Summary
from . import pictures

EPSILON_DIGITS = 3
MOST_SPELLED = 10.0  # epsilon up to which e^epsilon is spelled out; a larger one says nothing
MOST_NAMES = 50  # classes whose accuracy is shown: of more, the worst, and no matrix
ScoreOfName = tuple[str, int, float | None]
T = TypeVar("T")
CUSTODIANS = "(the custodian's, not shown)"  # a report is shared more widely than a run folder
TASKS = {  # the Hub's, by kind of label, for images and for vectors
    "class": ("image-classification", "tabular-classification"),
    "attributes": ("image-classification", "tabular-classification"),
    "value": ("other", "tabular-regression"),
}


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Why `auto` chose its method, of candidates.json."""

    reason: str
    source: str  # of the rows that it rehearsed on


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    folder: RunFolder
    config: Config
    summary: Summary
    info: StudentInfo  # what the kept student's file says
    finding: Finding  # the ledger's audit
    unsafe: bool  # whether the noise came from a test tape, by the ledger or by the summary
    # Why this run certifies nothing; empty where ledger, configuration and summary agree. An unsafe
    # ledger is reported apart.
    problems: list[str]
    certified: float | None  # epsilon by the ledger alone, None where nothing is certified
    risks: list[Risk]  # what it means for a person; none where nothing is certified
    choice: Chosen | None  # where `auto` chose the method


def read_run(run_dir: Path) -> FinishedRun:
    """Everything that a finished run left behind. Raises MissingData, LabelwallError."""
    folder = RunFolder(run_dir)
    for needed in (folder.summary, folder.config, folder.ledger, folder.student):
        if not needed.is_file():
            raise MissingData(
                "`run_dir` must be the folder of a finished run. "
                f"Found {str(run_dir)!r} without {needed.name}. "
                "`labelwall run` with the same --run_dir finishes a run."
            )
    config, summary = load_config(folder.config), read(Summary, folder.summary)
    finding = audit(folder.ledger, expect_head=summary.ledger_head)
    unsafe = summary.unsafe or finding.unsafe
    problems = [] if unsafe else finding.problems or _problems(config, summary, finding)
    if (info := unpack(folder.student.read_bytes(), str(folder.student))) is None:
        raise LabelwallError(f"{folder.student} says nothing of its student.")
    return FinishedRun(
        folder=folder,
        config=config,
        summary=summary,
        info=info,
        finding=finding,
        unsafe=unsafe,
        problems=problems,
        certified=None if unsafe or problems else finding.epsilon,
        risks=[] if unsafe or problems else finding.risks(),
        choice=read(Chosen, folder.candidates) if folder.candidates.is_file() else None,
    )


def _problems(config: Config, summary: Summary, finding: Finding) -> list[str]:
    """What claims another epsilon than a consistent ledger certifies."""
    stated = {
        "config.yaml": round_up(certified_epsilon(config.plan())),
        "summary.json": summary.epsilon,
    }
    return [
        f"{source} claims epsilon {claimed}, the ledger certifies {finding.epsilon}"
        for source, claimed in stated.items()
        if claimed != finding.epsilon
    ]


def write_report(run_dir: Path) -> Path:
    """Write report.html and MODEL_CARD.md of a finished run; returns the former's path.

    Raises MissingData where the folder holds no finished run, LabelwallError where its files can
    not be understood.
    """
    run = read_run(run_dir)
    write_file(run.folder.card, card(run))
    shown = {
        **_shown(run),
        "pictures": _pictures(run.folder, run.summary),
        "seen": pictures.public_pictures(run.folder, run.summary, run.info.labels.names),
    }
    write_file(run.folder.report, render("report.html", shown))  # ends a period
    return run.folder.report


def card(run: FinishedRun, file: str = "student.safetensors") -> str:
    """The model card's text. ``file``: the name of the student's file beside it."""
    front = yaml.safe_dump(_front(run), sort_keys=False, allow_unicode=True).strip()
    return render("model_card.md", {**_shown(run), "front": front, "file": file})


def _front(run: FinishedRun) -> dict[str, Any]:
    """The front matter: what the Hub lists a model by."""
    kind, images = run.info.labels.kind, len(run.info.input_shape) == 3
    task, data = TASKS[kind][0 if images else 1], data_name(run.config.data)
    if run.info.table and run.info.table.of_text:
        task = "text-classification"
    scores = {"accuracy": run.summary.test_accuracy}
    if kind == "value":
        scores = dict(run.summary.test_errors or {})
    elif (error := run.summary.kept.calibration_error) is not None:
        scores["expected_calibration_error"] = error
    known = {name: round(value, 6) for name, value in scores.items() if value is not None}
    results = {
        "task": {"type": task},
        "dataset": {"name": data, "type": run.config.data.source, "split": "test"},
        "metrics": [{"type": name, "value": value} for name, value in known.items()],
    }
    network = "linear" if _released(run) else run.config.student.backbone
    front = {
        "library_name": "labelwall",
        "pipeline_tag": task,
        "tags": ["labelwall", "differential-privacy", "pate", network],
    }
    if not known:
        return front
    index = [{"name": f"labelwall student of {data}", "results": [results]}]
    return front | {"metrics": list(scores), "model-index": index}


def _released(run: FinishedRun) -> bool:
    """Whether the student is the released classifier, in the place of a trained network."""
    return run.info.backbone.startswith(RELEASED)


def render(template: str, shown: dict[str, Any]) -> str:
    """A template beside this file: names are escaped in HTML, by ``cell`` in Markdown."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= FILTERS
    return templates.get_template(template).render(shown).rstrip() + "\n"


def _shown(run: FinishedRun) -> dict[str, Any]:
    """What page and card show: numbers and names."""
    plan, last, space = run.config.plan(), run.summary.kept, run.info.labels
    counts, without, frequent = np.array(last.confusion), untested(run.summary), {}
    if space.kind == "attributes" and not without:
        most = counts.sum(axis=2).max(axis=1) / counts.sum(axis=(1, 2))
        frequent = dict(zip(space.names, most.tolist(), strict=True))
    measured = [] if last.measures is None else list(last.measures.names.items())
    spelled = run.certified is not None and run.certified <= MOST_SPELLED
    settings = yaml.safe_dump(shown_config(run.config), sort_keys=False, allow_unicode=True)
    return {
        **vars(run),
        "plan": plan,
        "data": data_name(run.config.data),
        "certificate": smallest_certified(plan),
        "certificates": sorted(certificates(plan).items(), key=lambda item: item[1].epsilon),
        "factor": round_up(math.exp(run.certified or 0.0), 2) if spelled else None,
        "pooled": POOLED,
        "meaning": meaning(plan.unit),
        "priors": PRIORS,
        "risks_by": ", ".join(dict.fromkeys(BOUNDS[risk.by] for risk in run.risks)),
        "last": last,
        "released": _released(run),
        "labels": space,
        "table": run.info.table,
        "shape": run.info.input_shape,
        "scores": worst(scores_by_name(counts, space), lambda named: named[2]),
        "frequent": frequent,
        "most_names": MOST_NAMES,
        "bins": BINS,
        "uneven": uneven(run.summary),
        "names": listed(space.names),
        "answers": {"value": "values", "class": "names"}.get(space.kind, "present"),
        "columns": listed(run.info.table.features) if run.info.table else "",
        "untested": without,
        "periods": run.summary.periods if plan.periods > 1 else (),
        "rounds": run.summary.rounds,
        "kept": run.summary.best_round,
        "scored": (score := run.summary.private_score) is not None and score.right is not None,
        "thresholds": score.thresholds if score else {},
        "shown_config": settings,
        "measures": last.measures,
        "measured": worst(measured, lambda named: named[1].auroc),
    }


def _pictures(folder: RunFolder, summary: Summary) -> list[Markup]:
    """The pictures that there is something to show in."""
    measures = summary.kept.measures
    found = [pictures.by_round(summary.rounds)]
    if measures is not None:
        found += [pictures.reliability(measures), pictures.roc(measures)]
    if summary.kept.taught:
        found.append(pictures.training(folder.path / f"round_{summary.best_round}"))
    return [picture for picture in found if picture]


def scores_by_name(counts: np.ndarray, space: LabelSpace) -> list[ScoreOfName]:
    """(name, test rows, share of them that is right) by class or attribute; none for values.

    ``counts``: ``LabelSpace.confusion``. A class without test rows has no share.
    """
    if space.kind == "value":
        return []
    if space.kind == "class":
        rows, right = counts.sum(axis=1), counts.diagonal()
    else:
        rows, right = counts.sum(axis=(1, 2)), counts.trace(axis1=1, axis2=2)
    return [
        (name, int(n), int(r) / int(n) if n else None)
        for name, n, r in zip(space.names, rows, right, strict=True)
    ]


def worst(named: list[T], score: Callable[[T], float | None]) -> list[T]:
    """All that is named, or the MOST_NAMES of lowest score; those without one are the last."""
    if len(named) <= MOST_NAMES:
        return named
    return sorted(named, key=lambda one: 2.0 if (own := score(one)) is None else own)[:MOST_NAMES]


def data_name(data: DataConfig) -> str:
    """A data set's name: of its public rows' file or folder, since the custodian's paths are not
    shown, or of its source.
    """
    own = {"public": data.public} if data.public and not data.draws else {}
    name = run_name(own, ())
    return data.source if name in ("", ROWS) else name


def shown_config(config: Config) -> dict[str, Any]:
    """The resolved configuration without the custodian's paths."""
    shown = asdict(config)
    places = (shown["data"], ("private", "path")), (shown, ("custodian_dir", "anchor", "ledger"))
    for section, names in places:
        section |= {name: CUSTODIANS for name in names if section[name] is not None}
    return shown


def _epsilon(value: float | None) -> str:
    """An epsilon for a reader, rounded up; infinity where nothing is certified."""
    return "∞" if value is None else f"{round_up(value, EPSILON_DIGITS):.{EPSILON_DIGITS}f}"


def cell(text: object) -> str:
    """Text that is text in a table of Markdown, whatever it holds."""
    line = " ".join(html.escape(str(text), quote=False).split())
    return re.sub(r"([\\`*_|\[\]~$])", r"\\\1", line)


FILTERS: dict[str, Callable[[Any], str]] = {
    "percent": lambda share: "unknown" if share is None else f"{100 * share:.2f}%",
    "number": lambda value: "unknown" if value is None else f"{value:.4g}",
    "noisy": lambda told: " ± ".join(f"{part:.3f}" for part in told or ()) or "unknown",
    "epsilon": _epsilon,
    "share": share,
    "cell": cell,
}
