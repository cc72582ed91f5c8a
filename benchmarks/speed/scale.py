"""Time of a query by records, dimensions, queries and shards; Ray; 10^9 records on 100 machines.

    python benchmarks/speed/scale.py --results kept/ --out docs/figures    # 5 minutes
    python benchmarks/speed/scale.py --rows 10000 100000 --ray_rows 100000 # faster

The first has 10^4 to 10^7 rows x 256.
Rows are unit vectors of random directions as the extractor "raw" quantises them, made block by
block into a file that is mapped into memory. Each size runs in a process of its own, whose peak
memory is the system's figure (mapped pages included). Every time is a median of interleaved rounds,
in wall clock: other work on the machine shows. Lists are compared with those of all distances in
int64 for some queries. The model (scale_model.py) has its constants from these times
alone, and predicts runs that it was not fitted to.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from labelwall.benchmarks.shared.kept import kept
from labelwall.benchmarks.speed import scale_model
from labelwall.benchmarks.speed.scale_measures import BATCH, DIMENSIONS

LINEAR_FROM = 10**5
# The model's large case: rows, cores a machine, bytes a second of its network.
MACHINES = 100
LARGE = 10**9
CORES = 16
NETWORK = 1.25e9


def in_process(work: str, **fields: Any) -> dict[str, float]:
    """A measurement in a process of its own, so that its peak memory is its own."""
    with tempfile.TemporaryDirectory(dir=fields.pop("scratch", None)) as folder:
        order = json.dumps({"work": work, "folder": folder, **fields})
        program = Path(__file__).with_name("scale_measures.py")
        done = subprocess.run([sys.executable, program, order], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def exponent(sizes: list[int], times: list[float]) -> float:
    """Slope of log time by log size, least squares."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def table(title: str, heading: list[str], lines: list[list[object]]) -> str:
    shown = [
        [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in line] for line in lines
    ]
    return "\n".join(
        [
            f"\n{title}\n",
            *(f"| {' | '.join(line)} |" for line in [heading, ["---"] * len(heading), *shown]),
        ]
    )


Times = dict[int, float]


def slope(times: Times) -> str:
    """As words, where there are two sizes or more."""
    return (
        f"exponent {exponent(list(times), list(times.values())):.2f}"
        if len(times) > 1
        else "one size"
    )


def draw(
    folder: Path, sizes: dict[int, dict[str, float]], others: dict[str, dict[str, Times]]
) -> None:
    """Write ``scale_rows.svg``, search and product by records, and ``scale_parts.svg``.

    The latter has a panel for each of ``others``.
    """
    from labelwall.benchmarks.figures.figures import PALETTE, picture

    folder.mkdir(parents=True, exist_ok=True)
    with picture(folder / "scale_rows.svg") as (axes,):
        for (name, label), color in zip(
            {"search": "exact ordered list", "product": "int8 product alone"}.items(),
            PALETTE,
            strict=False,
        ):
            times = {rows: found[name] for rows, found in sizes.items()}
            large = {rows: time for rows, time in times.items() if rows >= LINEAR_FROM} or times
            axes.loglog(
                list(times),
                list(times.values()),
                "o-",
                color=color,
                label=f"{label}, {slope(large)}",
            )
        axes.set(
            xlabel=f"records of {DIMENSIONS} dimensions (exponents from {LINEAR_FROM:,} on)",
            ylabel=f"milliseconds a query, batches of {BATCH}",
        )
    with picture(folder / "scale_parts.svg", panels=len(others)) as panels:
        lines = list(dict.fromkeys(label for found in others.values() for label in found))
        for axes, (title, found) in zip(panels, others.items(), strict=True):
            for label in lines:  # all in the first panel, whose legend is the picture's
                times = found.get(label, {})
                axes.loglog(
                    list(times),
                    list(times.values()),
                    "o-",
                    color=PALETTE[lines.index(label)],
                    label=label,
                )
            axes.set(xlabel=title)
        panels[0].set(ylabel="milliseconds a query")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows",
        type=int,
        nargs="+",
        default=[10**4, 10**5, 10**6, 10**7],
        help="sizes, counts of records",
    )
    parser.add_argument(
        "--dimensions", type=int, nargs="+", default=[64, 256, 1024], help="at the second size"
    )
    parser.add_argument(
        "--batches",
        type=int,
        nargs="+",
        default=[1, 16, 256],
        help="queries a batch, at the second size",
    )
    parser.add_argument(
        "--shards",
        type=int,
        nargs="*",
        default=[1, 2, 5, 16],
        help="in one process, at the second size",
    )
    parser.add_argument("--ray", type=int, nargs="*", default=[1, 2], help="Ray workers")
    parser.add_argument("--ray_rows", type=int, default=10**6, help="records for them, a count")
    parser.add_argument(
        "--threads", type=int, default=2, help="of the searches by size; Ray workers have one each"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--scratch", type=Path, help="folder for the rows' files; 3 GB for 10^7 rows"
    )
    parser.add_argument(
        "--results",
        type=Path,
        help="folder that keeps the measurements, so that an interrupted study resumes",
    )
    parser.add_argument("--out", type=Path, help="folder for the plot")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    common = {"rounds": options.rounds, "scratch": options.scratch and str(options.scratch)}

    def size(
        rows: int, dimensions: int = DIMENSIONS, batch: int = BATCH, threads: int = options.threads
    ) -> dict[str, float]:
        fields = {"rows": rows, "dimensions": dimensions, "batch": batch, "threads": threads}
        return kept(
            options.results,
            f"size_{rows}_{dimensions}_{batch}_{threads}",
            lambda: in_process("size", **fields, **common),
        )

    def parted(rows: int, shards: int, backend: str) -> dict[str, float]:
        threads = shards if backend == "ray" else 1  # as many cores on both sides of the comparison
        fields = {
            "rows": rows,
            "dimensions": DIMENSIONS,
            "shards": shards,
            "backend": backend,
            "threads": threads,
        }
        return kept(
            options.results,
            f"{backend}_{rows}_{shards}",
            lambda: in_process("sharded", **fields, **common),
        )

    def constant(work: str, **fields: int) -> dict[str, float]:
        return kept(options.results, work, lambda: in_process(work, threads=1, **fields, **common))

    report(options, size, parted, constant)


Measure = Callable[..., dict[str, float]]


def report(options: argparse.Namespace, size: Measure, parted: Measure, constant: Measure) -> None:
    """Measure and print, part by part."""
    middle = options.rows[min(1, len(options.rows) - 1)]
    sizes = {rows: size(rows) for rows in options.rows}
    show_searches(f"Records, {DIMENSIONS} dimensions, batches of {BATCH}", "records", sizes)
    show_linear({rows: took for rows, took in of(sizes, "search").items() if rows >= LINEAR_FROM})
    wide = {d: size(middle, dimensions=d) for d in options.dimensions}
    show_searches(f"Dimensions, {middle} records", "dimensions", wide)
    many = {b: size(middle, batch=b) for b in options.batches}
    show_searches(f"Queries a batch, {middle} records", "queries", many)
    local = {s: parted(middle, s, "local") for s in options.shards}
    show_shards(f"Shards in one process of one thread, {middle} records", local)
    ray = {w: parted(options.ray_rows, w, "ray") for w in options.ray}
    show_shards(f"Ray workers by as many threads, {options.ray_rows} records", ray)

    one_thread = {
        rows: size(rows, threads=1)["search"]
        for rows in sorted({*options.rows[:3], options.ray_rows})
    }
    echoes = {int(width): took for width, took in constant("echoed").items()}
    found = scale_model.fitted(one_thread, echoes, BATCH, constant("merging", shards=64)["entry"])
    show_model(
        found,
        list(checks(found, options, of(sizes, "search"), of(local, "shards"), of(ray, "shards"))),
    )
    if options.out:
        workers = {
            "shards, one process": of(local, "shards"),
            f"Ray workers, {options.ray_rows:,} records": of(ray, "shards"),
        }
        both = [{name: of(each, name) for name in ("search", "product")} for each in (wide, many)]
        titles = f"dimensions, {middle:,} records", "queries a batch", "shards"
        draw(options.out, sizes, dict(zip(titles, [*both, workers], strict=True)))


def of(measured: dict[int, dict[str, float]], name: str) -> Times:
    return {number: found[name] for number, found in measured.items()}


def show_searches(title: str, heading: str, measured: dict[int, dict[str, float]]) -> None:
    columns = [
        heading,
        "search, ms a query",
        "product",
        "ratio",
        "beyond the features, GiB",
        "equal to brute force",
    ]
    lines = [
        [
            n,
            f["search"],
            f["product"],
            f["search"] / f["product"],
            f["beyond"] / 2**30,
            "yes" if f["right"] else "NO",
        ]
        for n, f in measured.items()
    ]
    print(table(f"{title}: {slope(of(measured, 'search'))}", columns, lines))


def show_shards(title: str, measured: dict[int, dict[str, float]]) -> None:
    columns = ["shards", "one index, ms a query", "shards, ms a query", "ratio", "same lists"]
    lines = [
        [s, f["one"], f["shards"], f["shards"] / f["one"], "yes" if f["same"] else "NO"]
        for s, f in measured.items()
    ]
    print(table(f"{title}: {slope(of(measured, 'shards'))}", columns, lines))


def show_linear(times: Times) -> None:
    """Print how far the times are from linear in the records.

    By the exponent, the time of a record, and a line with a constant for each list.
    """
    if len(times) < 2:
        return
    each = [took / rows for rows, took in times.items()]
    rows, took = np.array(list(times), dtype=float), np.array(list(times.values()))
    terms = np.stack([rows, np.ones(len(rows))], axis=1)
    per_row, own = np.linalg.lstsq(terms / took[:, None], np.ones(len(rows)), rcond=None)[0]
    off = 100 * np.abs((terms @ [per_row, own]) / took - 1).max()
    differs = 100 * (max(each) / min(each) - 1)
    print(
        f"\nfrom {min(times)} records on: {slope(times)}; time / records differs by {differs:.0f}%;"
    )
    print(
        f"{1e6 * per_row:.3g} ns a record and {own:.3g} ms a list are within {off:.0f}% "
        "of every size"
    )


def checks(
    found: scale_model.Constants,
    options: argparse.Namespace,
    sizes: Times,
    local: Times,
    ray: Times,
) -> Iterator[list[object]]:
    """The model's predictions of runs that it was not fitted to, beside their times, as lines."""
    said = partial(scale_model.cost, found, batch=BATCH)
    for rows, took in sizes.items():
        yield [
            f"{rows} records, one index, {options.threads} threads",
            said(rows, 1)["search"] / options.threads,
            took,
        ]
    middle = options.rows[min(1, len(options.rows) - 1)]
    for shards, took in local.items():
        yield [
            f"{middle} records, {shards} shards in one process",
            sum(said(middle, shards).values()),
            took,
        ]
    for workers, took in ray.items():
        yield [
            f"{options.ray_rows} records, {workers} Ray workers",
            sum(said(options.ray_rows, workers, ray=True).values()),
            took,
        ]


def show_model(found: scale_model.Constants, compared: list[list[object]]) -> None:
    """The constants, ``compared``, and the large case."""
    print(
        "\nModel, milliseconds: "
        + ", ".join(f"{name} {value:.3g}" for name, value in asdict(found).items())
    )
    heading = ["run", "said, ms a query", "measured", "said by measured"]
    lines = [[run, said, took, said / took] for run, said, took in compared]
    print(table("The model beside runs that it was not fitted to", heading, lines))
    for shards in (MACHINES, MACHINES * CORES):
        threads = MACHINES * CORES // shards
        parts = scale_model.cost(found, LARGE, shards, BATCH, threads=threads, ray=True)
        travels = scale_model.bytes_a_query(shards)
        print(
            f"\n{LARGE} records on {MACHINES} machines, {shards} workers of {threads} threads, "
            f"batches of {BATCH}:"
        )
        shown = ", ".join(f"{name} {value:.3g}" for name, value in parts.items())
        print(f"  ms a query: {shown}, network", end=" ")
        print(f"{1000 * travels / NETWORK:.3g} ({travels / 1024:.0f} KiB)")
    print(
        "  GiB of "
        + ", of ".join(
            f"{name} {value:.3g}" for name, value in scale_model.memory(LARGE, MACHINES).items()
        )
    )


if __name__ == "__main__":
    main()
