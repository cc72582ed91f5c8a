"""A training's curves, from the events that it left for TensorBoard."""

from contextlib import suppress
from pathlib import Path

from markupsafe import Markup

from ...student.round_files import EVENTS
from .pictures import Line, chart

LOSSES = {"loss/supervised": "loss on labels", "loss/unlabelled": "loss on all rows"}
RIGHT = "accuracy/test"
Curve = list[tuple[int, float]]  # (step, value)


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
