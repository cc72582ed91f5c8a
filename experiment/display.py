"""How what Python returns shows itself: facts in a line, and as a table in a notebook's cell."""

import html
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence


class ShowsFacts(ABC):
    """Shows its public facts."""

    @abstractmethod
    def facts(self) -> Mapping[str, object]:
        """What it is, by name."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in self.facts().items())})"

    def _repr_html_(self) -> str:
        return table(self.facts().items())


def table(rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> str:
    """A table of HTML, whose cells are texts."""
    shown, lines = "", [("th", header)] if header else []
    for tag, cells in [*lines, *(("td", row) for row in rows)]:
        start, end = f'<{tag} style="text-align: left">', f"</{tag}>"
        shown += f"<tr>{''.join(f'{start}{html.escape(str(c))}{end}' for c in cells)}</tr>"
    return f"<table>{shown}</table>"
