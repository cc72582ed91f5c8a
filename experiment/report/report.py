"""report.html of a finished run: one file, from the run folder and public rows alone.

The same run folder gives the same bytes. Nothing private is opened: not the custodian's directory,
not the private rows.
"""

from __future__ import annotations

import html
import json
import math
import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from ...teacher.accounting.accountant import certificates, certified_epsilon, smallest_certified
from ...teacher.accounting.conversion import round_up
from ...teacher.ledger.auditor.auditor import Finding, audit
from ...wall.datasets.config import DataConfig
from ...wall.datasets.sources import read_public
from ...wall.errors import LabelwallError, MissingData
from ...wall.guarantee import POOLED
from ...wall.labels import LabelSpace
from ...wall.messages import Outcome
from ..config.config import Config
from ..config.settings import load_config
from ..run.metrics import labels_of, uneven
from ..run.quality import estimate_of
from ..run.run_folder import RunFolder
from . import plots

EPSILON_DIGITS = 3
COUNTS = ("asked", "answered", "abstained", "cap_reached")
SHARES = ("label_accuracy", "student_accuracy")
ERRORS = ("label_errors", "student_errors")  # of values, in place of the shares
# What the page says about a round
ROUND_KEYS = (*COUNTS, *SHARES, "epsilon_reading", "extractor", "confusion", "history")
MOST_SPELLED = 10.0  # epsilon up to which e^epsilon is spelled out; a larger one says nothing
MOST_IMAGES = 10  # shown for each round and outcome
# By kind of label: the last student's answers on the test split against the truth, from counts of
# rows.
PICTURES: dict[str, Callable[[np.ndarray, LabelSpace], bytes]] = {
    "class": lambda counts, space: plots.confusion_matrix(counts, space.names),
    "attributes": lambda counts, space: plots.attribute_accuracy(counts, space.names),
    "value": lambda counts, space: plots.value_scatter(counts, *space.bounds),
}
MEASURES = {  # of a training
    "accuracy/test": "share of test rows right",
    "loss/supervised": "loss on released labels",
    "loss/unlabelled": "loss on unlabelled rows",
}
RARE = 0.1  # share of right rows below which a class is named
MOST_RARE = 10  # of these that are named
MOST_NAMES = 50  # classes whose accuracy is shown: of more, the worst
ScoreOfName = tuple[str, int, float | None]
CUSTODIANS = "(the custodian's, not shown)"  # a report is shared more widely than a run folder


@dataclass(frozen=True)
class FinishedRun:
    """What a run folder says.

    ``summary``, ``rounds``: summary.json and each metrics.json; ``finding``: the ledger's audit;
    ``choice``: candidates.json, where `auto` chose the method.
    """

    folder: RunFolder
    config: Config
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    finding: Finding
    choice: dict[str, Any] | None = None

    @property
    def unsafe(self) -> bool:
        """Whether the noise came from a test tape, by the ledger or by the summary."""
        return bool(self.summary["unsafe"]) or self.finding.unsafe

    @property
    def problems(self) -> list[str]:
        """Why this run certifies nothing; empty where ledger, configuration and summary agree.

        An unsafe ledger is reported apart.
        """
        if self.unsafe or self.finding.problems:
            return [] if self.unsafe else self.finding.problems
        stated = {
            "config.yaml": round_up(certified_epsilon(self.config.plan())),
            "summary.json": self.summary["epsilon"],
        }
        return [
            f"{source} claims epsilon {claimed}, the ledger certifies {self.finding.epsilon}"
            for source, claimed in stated.items()
            if claimed != self.finding.epsilon
        ]

    @property
    def kept(self) -> int:
        """The round whose student the run kept, from 1."""
        return int(self.summary["best_round"])

    @property
    def last(self) -> dict[str, Any]:
        """The metrics of that round."""
        return self.rounds[self.kept - 1]

    @property
    def certified(self) -> float | None:
        """Epsilon by the ledger alone, None where nothing is certified."""
        return None if self.unsafe or self.problems else self.finding.epsilon


def write_report(run_dir: Path) -> Path:
    """Write report.html of a finished run and return its path.

    Raises MissingData where the folder holds no finished run, LabelwallError where its files can
    not be understood.
    """
    run = read_run(run_dir)
    run.folder.write_text(
        run.folder.report, environment().get_template("report.html").render(contents(run))
    )
    return run.folder.report


def environment() -> Environment:
    """The templates beside this file: names are escaped in HTML, by ``cell`` in Markdown."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "percent": percent,
        "number": number,
        "epsilon": epsilon,
        "cell": cell,
        "svg": partial(data_uri, kind="svg+xml"),
        "png": partial(data_uri, kind="png"),
    }
    return templates


def read_run(run_dir: Path) -> FinishedRun:
    """Everything that a finished run left behind. Raises MissingData, LabelwallError."""
    folder, recorded = RunFolder(run_dir), run_dir / "config.yaml"
    for needed in (folder.summary, recorded, folder.ledger):
        if not needed.is_file():
            raise MissingData(
                "`run_dir` must be the folder of a finished run. "
                f"Found {str(run_dir)!r} without {needed.name}. "
                "`labelwall run` with the same --run_dir finishes a run."
            )
    config = load_config(recorded)
    try:
        summary = json.loads(folder.summary.read_text())
        rounds = [_metrics(folder, number) for number in range(1, len(summary["rounds"]) + 1)]
        finding = audit(folder.ledger, expect_head=summary["ledger_head"])
        choice = None
        if folder.candidates.is_file():
            stored = json.loads(folder.candidates.read_text())
            choice = {name: str(stored[name]) for name in ("reason", "source")}
        return FinishedRun(folder, config, summary, rounds, finding, choice)
    except (ValueError, KeyError, TypeError) as error:
        raise LabelwallError(
            f"A JSON file of {run_dir} is damaged ({type(error).__name__})."
        ) from error


def _metrics(folder: RunFolder, number: int) -> dict[str, Any]:
    path = folder.path / f"round_{number}" / "metrics.json"
    for needed in (path, path.with_name("answers.npz")):
        if not needed.is_file():
            raise MissingData(
                f"round {number} of {folder.path} is not complete: {needed.name} is missing."
            )
    metrics = dict(json.loads(path.read_text()))
    if missing := [key for key in ROUND_KEYS if key not in metrics]:
        raise LabelwallError(
            f"{path} must be of this version of labelwall. Found it without {', '.join(missing)}."
        )
    return metrics


def contents(run: FinishedRun) -> dict[str, object]:
    """What the template shows: numbers, names, pictures as bytes."""
    plan, space, certified = run.config.plan(), label_space_of(run), run.certified
    bounds = sorted(certificates(plan).items(), key=lambda item: item[1].epsilon)
    factor = None
    if certified is not None and certified <= MOST_SPELLED:
        factor = round_up(math.exp(certified), 2)
    bins = run.last.get("reliability")
    readings = [r["epsilon_reading"] for r in run.rounds]
    return {
        "summary": run.summary,
        "rounds": run.rounds,
        "plan": plan,
        "certified": certified,
        "factor": factor,
        "certificates": bounds,
        "counting": smallest_certified(plan),
        "unsafe": run.unsafe,
        "problems": run.problems,
        "finding": run.finding,
        "pooled": POOLED,
        "charges": _charges(run),
        "accuracy_plot": _scores_plot(run),
        "epsilon_plot": plots.epsilon_by_round(readings, certified, plan.epsilon),
        "labels": space.kind,
        "confusion_plot": PICTURES[space.kind](np.array(run.last["confusion"]), space),
        "class_plot": plots.class_accuracy(scores_by_name(run.last, space))
        if space.kind == "class"
        else None,
        "vectors": run.rounds[0]["extractor"] in ("raw", "box"),  # which images do not have
        "of_table": run.config.data.source == "table",
        "named": len(space.names),
        "most_names": MOST_NAMES,
        "rarely_right": rarely_right(run.last, space),
        "uneven": uneven(run.summary),
        "last": run.last,
        "reliability_plot": plots.reliability(bins) if bins else None,
        "kept": run.kept,
        "choice": run.choice,
        "estimates": [estimate_of(r) for r in run.rounds],
        "curves": training_curves([r["history"] for r in run.rounds]),
        "examples": examples(run.config.data, run.folder, len(run.rounds), space),
        "config": yaml.safe_dump(shown_config(run.config), sort_keys=False, allow_unicode=True),
    }


def _scores_plot(run: FinishedRun) -> bytes:
    """Scores of labels and student by round: accuracies, or root mean squared errors."""
    if "student_errors" in run.rounds[-1]:
        labels, students = ([r[name] and r[name]["rmse"] for r in run.rounds] for name in ERRORS)
        lines = {"released values": labels, "student on the test split": students}
        return plots.by_round(lines, "root mean squared error")
    labels, students = (
        [None if r[share] is None else 100 * r[share] for r in run.rounds] for share in SHARES
    )
    lines = {"released labels right": labels, "student right on the test split": students}
    return plots.by_round(lines, "percent")


def _charges(run: FinishedRun) -> list[dict[str, object]]:
    """What the ledger says was paid and released, by slot and release, against the plan's caps."""
    paid, released = run.finding.charged, run.finding.released
    return [
        {
            "slot": slot,
            "release": r.name,
            "cap": r.cap,
            "charged": paid.get(key, 0),
            "released": released.get(key, 0),
        }
        for slot, entry in enumerate(run.config.plan().slots)
        for r in entry.releases
        for key in [f"{slot}/{r.name}"]
    ]


def label_space_of(run: FinishedRun) -> LabelSpace:
    """The labels of the run's task."""
    return labels_of(run.config.data, len(run.rounds[-1]["confusion"]))


def scores_by_name(metrics: dict[str, Any], space: LabelSpace) -> list[ScoreOfName]:
    """(name, test rows, share of them that is right) by class or attribute; none for values.

    Of more than MOST_NAMES the worst are left. A class without test rows has no share.
    """
    scores = _all_scores(metrics, space)
    if len(scores) <= MOST_NAMES:
        return scores
    return sorted(scores, key=lambda score: 2.0 if score[2] is None else score[2])[:MOST_NAMES]


def _all_scores(metrics: dict[str, Any], space: LabelSpace) -> list[ScoreOfName]:
    if space.kind == "value":
        return []
    counts = np.array(metrics["confusion"])
    if space.kind == "class":
        rows, right = counts.sum(axis=1), counts.diagonal()
    else:
        rows, right = counts.sum(axis=(1, 2)), counts.trace(axis1=1, axis2=2)
    return [
        (name, int(n), int(r) / int(n) if n else None)
        for name, n, r in zip(space.names, rows, right, strict=True)
    ]


def rarely_right(metrics: dict[str, Any], space: LabelSpace) -> str | None:
    """A sentence that names classes of whose test rows fewer than RARE are right; None without."""
    scores = _all_scores(metrics, space)
    names = [name for name, _, right in scores if right is not None and right < RARE]
    if not names:
        return None
    named = ", ".join(names[:MOST_RARE])
    if len(names) > MOST_RARE:
        named += f" and {len(names) - MOST_RARE} more"
    return f"Right on less than {RARE:.0%} of the test rows of {len(names)} classes: {named}."


def training_curves(histories: Sequence[Sequence[dict[str, float]]]) -> dict[str, bytes]:
    """Metric -> SVG, one line a round; what is 0 throughout, such as an unused loss, is left out.

    ``histories``: by round, the student's rows of a step and its metrics.
    """
    curves = {}
    names = {name for history in histories for row in history for name in row if row[name]}
    for name in sorted(names - {"step"}):
        lines = {
            f"round {number}": (
                [row["step"] for row in history],
                [row.get(name) for row in history],
            )
            for number, history in enumerate(histories, start=1)
        }
        curves[name] = plots.line_plot(lines, x="optimiser step", y=MEASURES.get(name, name))
    return curves


def shown_config(config: Config) -> dict[str, Any]:
    """The resolved configuration without the custodian's paths."""
    shown = asdict(config)
    places = (shown["data"], ("private", "path")), (shown, ("custodian_dir", "anchor", "ledger"))
    for section, names in places:
        section |= {name: CUSTODIANS for name in names if section[name] is not None}
    return shown


def examples(
    data: DataConfig, folder: RunFolder, rounds: int, space: LabelSpace
) -> list[dict[str, Any]]:
    """By round the first public images that were answered, and the first abstained on.

    Each has a PNG file, the label given and the true one, as LabelSpace.example words them. Empty
    where inputs are feature vectors, or where the public rows are gone or fewer than were asked.
    Nothing is downloaded.
    """
    try:
        public = read_public(replace(data, download=False))
    except LabelwallError:
        return []
    stored = [folder.load_answers(number) for number in range(1, rounds + 1)]
    if public.inputs.ndim != 4 or any((rows >= len(public.inputs)).any() for rows, _, _ in stored):
        return []

    def example(row: int, label: np.ndarray) -> dict[str, Any]:
        given, true = space.example(label, None if public.labels is None else public.labels[row])
        return {"image": plots.png(public.inputs[row]), "given": given, "true": true}

    def first(
        outcome: Outcome, rows: np.ndarray, labels: np.ndarray, outcomes: np.ndarray
    ) -> list[dict[str, Any]]:
        places = np.flatnonzero(outcomes == outcome)[:MOST_IMAGES]
        return [example(int(rows[place]), labels[place]) for place in places]

    kinds = {"answered": Outcome.ANSWERED, "abstained": Outcome.ABSTAINED}
    return [{name: first(kind, *answers) for name, kind in kinds.items()} for answers in stored]


def percent(value: float | None) -> str:
    """A share in 0..1 for a reader."""
    return "unknown" if value is None else f"{100 * value:.2f}%"


def number(value: float | None) -> str:
    """An error or a score for a reader."""
    return "unknown" if value is None else f"{value:.4g}"


def epsilon(value: float | None) -> str:
    """An epsilon for a reader, rounded up; infinity where nothing is certified."""
    return "∞" if value is None else f"{round_up(value, EPSILON_DIGITS):.{EPSILON_DIGITS}f}"


def cell(text: object) -> str:
    """Text that is text in a table of Markdown, whatever it holds."""
    line = " ".join(html.escape(str(text), quote=False).split())
    return re.sub(r"([\\`*_|\[\]~$])", r"\\\1", line)


def data_uri(content: bytes, kind: str) -> str:
    """A picture inside the page, as an image, whose element ids can not clash with another's."""
    return f"data:image/{kind};base64,{b64encode(content).decode()}"
