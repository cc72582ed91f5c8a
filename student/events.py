"""TensorBoard's events: the same values give the same file, without time, host or process."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from ..wall.files import whole


def numbers(named: Mapping[str, float | None]) -> list[Summary.Value]:
    """The known ones of these numbers, each a curve of its name."""
    known = {name: value for name, value in named.items() if value is not None}
    return [Summary.Value(tag=name, simple_value=value) for name, value in known.items()]


def write_events(path: Path, steps: Iterable[tuple[float, Sequence[Summary.Value]]]) -> None:
    """Write values by step, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as file:
        records = RecordWriter(file)
        records.write(Event(file_version="brain.Event:2").SerializeToString())
        for step, values in steps:
            event = Event(step=int(step), summary=Summary(value=values))
            records.write(event.SerializeToString())
