"""Pictures of a report: inline SVG in the page's own colours, light or dark, without scripts.

They show a run's results, and what the run folder says of public rows: maps of their features,
images, bars.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from ...student.measures import CURVE, Measures
from ...student.results import RoundResult
from ...student.round_files import EVENTS, MAP
from ...wall.errors import LabelwallError
from ...wall.files import reading
from ..run.run_folder import RunFolder
from ..run.summary import Summary

WIDTH, HEIGHT, LEFT, BELOW, ABOVE = 320, 220, 44, 34, 10  # of a picture, and its margins (pixels)
LEGEND = 16  # pixels of a line of the legend
MOST_LINES = 5  # in one picture
COLOURS = ("var(--blue)", "var(--red)", "var(--green)", "var(--gold)", "var(--soft)")
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
SHARES = [(tick, f"{tick:g}") for tick in TICKS]  # ticks of an axis of shares
# Of a training, as TensorBoard has them
LOSSES = {"loss/supervised": "loss on labels", "loss/unlabelled": "loss on all rows"}
RIGHT = "accuracy/test"
MOST_MAPS, SIDE, MARGIN = 3, 240, 6  # maps; pixels of one
# Of the most frequent classes, on white and on black; others are grey
OF_CLASSES = ["#4477dd", "#e07b28", "#2f9e58", "#d64550", "#9467bd"]
OF_CLASSES += ["#a0705f", "#d965b8", "#6f7a1c", "#17a5b8", "#d4ac00"]
OTHERS, NONE = "other classes", "no label"
GREY = "var(--soft)"

Curve = list[tuple[int, float]]  # (step, value)


@dataclass(frozen=True, kw_only=True)
class Line:
    """A named line of (x, y) points, both in 0..1; ``dots``: each point is marked."""

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False


def by_round(rounds: Sequence[RoundResult]) -> Markup:
    """Share of right labels and of right students by round; empty for one round."""
    last = max(1, len(rounds) - 1)
    lines = list[Line]()
    for name in rounds[0].shares:
        shares = [known.shares[name] for known in rounds]
        points = [(at / last, share) for at, share in enumerate(shares) if share is not None]
        lines += [Line(name=name, points=points, dots=True)] if points else []
    if len(rounds) < 2 or not lines:
        return Markup()
    ticks = [(at / last, str(at + 1)) for at in range(len(rounds))]
    return chart("right by round", lines, x_label="round", y_label="right", x_ticks=ticks)


def reliability(measures: Measures) -> Markup:
    """How often answers of each certainty are right, beside the diagonal."""
    points = [(sure, right) for _, sure, right in measures.bins]
    found = Line(name="student", points=points, dots=True)
    even = Line(name="as sure as right", points=[(0.0, 0.0), (1.0, 1.0)])
    return chart("reliability", [found, even], x_label="certainty", y_label="right")


def roc(measures: Measures) -> Markup:
    """ROC curves of the classes or attributes, at most MOST_LINES, the lowest first; empty if there
    is none.
    """
    known = [(name, one) for name, one in measures.names.items() if one.auroc is not None]
    if len(measures.names) == 2 == len(known):
        first, second = (one.auroc or 0.0 for _, one in known)
        known = known[math.isclose(first, second) :]  # curves of two classes mirror each other
    known = sorted(known, key=lambda item: item[1].auroc or 0.0)[:MOST_LINES]
    steps = [at / (CURVE - 1) for at in range(CURVE)]
    lines = [
        Line(name=f"{name} ({one.auroc:.3f})", points=list(zip(steps, one.roc, strict=True)))
        for name, one in known
    ]
    if not lines:
        return Markup()
    return chart("ROC", lines, x_label="false positive rate", y_label="sensitivity")


def training(round_folder: Path) -> Markup:
    """Losses by step, each as a share of its highest, and test rows right; empty for few steps."""
    curves, lines = _read(round_folder / EVENTS), list[Line]()
    last = max((step for curve in curves.values() for step, _ in curve), default=0)
    for tag, curve in sorted(curves.items()):
        highest = 1.0 if tag == RIGHT else max(value for _, value in curve)
        if len(curve) < 2 or highest <= 0 or (tag != RIGHT and tag not in LOSSES):
            continue
        name = "test rows right" if tag == RIGHT else f"{LOSSES[tag]}, of {highest:.3g}"
        points = [(step / last, value / highest) for step, value in curve]
        lines.append(Line(name=name, points=points))
    if not lines:
        return Markup()
    ticks = [(share, str(round(share * last))) for share in (0.0, 0.5, 1.0)]
    return chart("training", lines, x_label="step", y_label="share", x_ticks=ticks)


def _read(path: Path) -> dict[str, Curve]:
    """The curves by their names; none of a file that is missing or damaged."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # slow

    curves = dict[str, Curve]()
    if not path.is_file():
        return curves
    with suppress(Exception):  # of many types
        events = EventAccumulator(str(path)).Reload()
        for tag in events.Tags()["scalars"]:
            curves[tag] = [(event.step, event.value) for event in events.Scalars(tag)]
    return curves


def chart(
    title: str,
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    x_ticks: Sequence[tuple[float, str]] = SHARES,
) -> Markup:
    """An SVG picture of lines between axes from 0 to 1, with a legend below."""
    parts = [f"<title>{escape(title)}</title>"]
    for tick in TICKS:
        left, down = _place(0.0, tick)
        parts.append(f'<path class="grid" d="M{left} {down}H{_place(1.0, tick)[0]}"/>')
        parts.append(f'<text class="y" x="{LEFT - 5}" y="{down}" dy=".3em">{tick:g}</text>')
    for x, text in x_ticks:
        at = _place(x, 0.0)[0]
        parts.append(f'<text class="x" x="{at}" y="{HEIGHT - BELOW + 15}">{escape(text)}</text>')
    middle = (WIDTH + LEFT - ABOVE) / 2
    parts.append(f'<text class="x" x="{middle}" y="{HEIGHT - 4}">{escape(x_label)}</text>')
    turned = f'transform="translate(11 {(HEIGHT - BELOW) / 2}) rotate(-90)"'
    parts.append(f'<text class="x" {turned}>{escape(y_label)}</text>')
    for number, line in enumerate(lines):
        colour = f'style="--of:{COLOURS[number % len(COLOURS)]}"'
        places = [_place(*point) for point in line.points]
        path = "L".join(f"{across} {down}" for across, down in places)
        parts.append(f'<path class="line" {colour} d="M{path}"/>')
        for across, down in places if line.dots else ():
            parts.append(f'<circle r="3" {colour} cx="{across}" cy="{down}"/>')
        below = HEIGHT + 12 + LEGEND * number
        parts.append(f'<path class="line" {colour} d="M{LEFT} {below - 4}h16"/>')
        parts.append(f'<text x="{LEFT + 22}" y="{below}">{escape(line.name)}</text>')
    size = f"0 0 {WIDTH} {HEIGHT + LEGEND * len(lines) + 4}"
    about = f'role="img" aria-label="{escape(title)}"'
    return Markup(f'<svg class="chart" viewBox="{size}" {about}>{"".join(parts)}</svg>')


def _place(x: float, y: float) -> tuple[float, float]:
    """Pixels from the left and from above of a point in 0..1."""
    across, down = WIDTH - LEFT - ABOVE, HEIGHT - BELOW - ABOVE
    return round(LEFT + x * across, 1), round(ABOVE + (1 - y) * down, 1)


def public_pictures(folder: RunFolder, summary: Summary, names: Sequence[str]) -> dict[str, Any]:
    """What there is to show of a run's public rows; the rest is empty. ``names``: of classes.

    colours: of classes by name; grey: what else the maps show, others: classes beside; maps: (round
    number, picture, result); shown: ``ShownRows``; answered, columns: as ``_bars``.
    """
    found, shown = _maps(folder, summary, len(names)), folder.shown_rows()
    labels = np.concatenate([np.zeros(0, dtype=np.int64), *(codes for _, _, codes in found)])
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    frequent = np.sort(np.argsort(-counts, kind="stable")[: len(OF_CLASSES)])
    colours = {names[code]: colour for code, colour in zip(frequent, OF_CLASSES, strict=False)}
    others = OTHERS if len(names) > len(colours) else ""
    maps = [
        (
            number,
            _scatter(places, [names[c] if c >= 0 else NONE for c in codes], colours),
            summary.rounds[number - 1],
        )
        for number, places, codes in found
    ]
    asked = {} if shown is None else shown.answered
    answered = {name: {"answered": n, "abstained": rest} for name, (n, rest) in asked.items()}
    return {
        "colours": colours,
        "grey": " or ".join(filter(None, [others, NONE if (labels < 0).any() else ""])),
        "others": others,
        "maps": maps,
        "shown": shown,
        "answered": _bars(answered, lambda n: f"{n['answered']} of {sum(n.values())}"),
        "columns": _bars(
            {} if shown is None else shown.columns, lambda n: f"{100 * sum(n.values()):.1f}%"
        ),
    }


def _maps(
    folder: RunFolder, summary: Summary, classes: int
) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """(round, places float [n, 2], labels int64 [n]) of the first and the last rounds with some."""
    found = []
    for number in range(1, len(summary.rounds) + 1):
        path = folder.path / f"round_{number}" / MAP
        with suppress(OSError, LabelwallError), reading(path), np.load(path) as stored:
            places, labels = stored["places"], stored["labels"].astype(np.int64).ravel()
            whole = places.shape == (len(labels), 2) and np.isfinite(places).all()
            if whole and labels.max(initial=0) < classes:
                found.append((number, places, labels))
    return found if len(found) <= MOST_MAPS else [found[0], *found[1 - MOST_MAPS :]]


def _scatter(places: np.ndarray, labels: Sequence[str], colours: Mapping[str, str]) -> Markup:
    """Points in the colours of their labels, hollow ones without a label."""
    pixels = np.rint(MARGIN + places * (SIDE - 2 * MARGIN)).astype(int).tolist()
    points = dict[str, list[str]]()
    for (across, down), label in zip(pixels, labels, strict=True):
        points.setdefault(colours.get(label, GREY), []).append(f"M{across} {down}h0")
    paths = "".join(
        f'<path class="dots" style="--of:{colour}" d="{"".join(points[colour])}"/>'
        for colour in (GREY, *colours.values())
        if colour in points
    )
    return Markup(f'<svg class="map" viewBox="0 0 {SIDE} {SIDE}" role="img">{paths}</svg>')


def _bars(
    named: Mapping[str, Mapping[str, float]], text: Callable[[Mapping[str, float]], str]
) -> list[tuple[str, list[tuple[str, float]], str]]:
    """(name, parts (class, share of the longest bar in percent), text of the numbers) of each."""
    longest = max((sum(parts.values()) for parts in named.values()), default=1.0)
    return [
        (name, [(of, 100 * part / longest) for of, part in parts.items()], text(parts))
        for name, parts in named.items()
    ]
