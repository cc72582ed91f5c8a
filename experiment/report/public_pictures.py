"""What a report shows of public rows: maps of their features, images, bars; from the run folder."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from markupsafe import Markup

from ...student.round_files import MAP
from ...wall.errors import LabelwallError
from ...wall.files import reading
from ..run.run_folder import RunFolder
from ..run.summary import Summary

MOST_MAPS, SIDE, MARGIN = 3, 240, 6  # maps; pixels of one
# Of the most frequent classes, on white and on black; others are grey
COLOURS = ["#4477dd", "#e07b28", "#2f9e58", "#d64550", "#9467bd"]
COLOURS += ["#a0705f", "#d965b8", "#6f7a1c", "#17a5b8", "#d4ac00"]
OTHERS, NONE = "other classes", "no label"
GREY = "var(--soft)"


def public_pictures(folder: RunFolder, summary: Summary, names: Sequence[str]) -> dict[str, Any]:
    """What there is to show of a run's public rows; the rest is empty. ``names``: of classes.

    colours: of classes by name; grey: what else the maps show, others: classes beside; maps: (round
    number, picture, result); shown: ``ShownRows``; answered, columns: as ``_bars``.
    """
    found, shown = _maps(folder, summary, len(names)), folder.shown_rows()
    labels = np.concatenate([np.zeros(0, dtype=np.int64), *(codes for _, _, codes in found)])
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    frequent = np.sort(np.argsort(-counts, kind="stable")[: len(COLOURS)])
    colours = {names[code]: colour for code, colour in zip(frequent, COLOURS, strict=False)}
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
