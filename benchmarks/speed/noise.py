"""Processor nanoseconds a draw of the exact sampler, against OpenDP's (extra `test`), on one core.

    python benchmarks/speed/noise.py

Both draw the same law in batches of the same size, in turns in one process; the ratio is the median
over the rounds. Processor time is counted, so that other work on the machine does not count. A call
of ours includes its key and stream. Setup once per scale (a table here, a measurement there)
happens before and is timed separately.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import opendp.prelude as dp

from labelwall.teacher.noise import sampler
from labelwall.teacher.noise.entropy import SystemEntropy

LAWS = [
    *((sampler.GAUSSIAN, scale) for scale in (1.0, 25.0, 75.0, 300.0, 5000.0, 1e6)),
    (sampler.LAPLACE, 20.0),
    (sampler.LAPLACE, 1000.0),
]
SECONDS = 0.02  # what a round of ours repeats a small batch for


@dataclass(frozen=True)
class Line:
    """Medians over the rounds, in nanoseconds a draw, and the median of the ratios."""

    law: str
    batch: int
    ours: float
    opendp: float
    ratio: float


def ours(power: int, scale: float, batch: int) -> Callable[[], object]:
    """A call of the release path."""
    entropy = SystemEntropy()
    call = entropy.discrete_gaussian if power == sampler.GAUSSIAN else entropy.discrete_laplace
    return lambda: call(scale, ["query"], "release", batch)


def theirs(power: int, scale: float, batch: int) -> Callable[[], object]:
    """OpenDP's call on zeros."""
    dp.enable_features("contrib")
    domain, zeros = dp.vector_domain(dp.atom_domain(T="i64")), [0] * batch
    if power == sampler.GAUSSIAN:
        measurement = dp.m.make_gaussian(domain, dp.l2_distance(T="f64"), scale=scale)
    else:
        measurement = dp.m.make_laplace(domain, dp.l1_distance(T="i64"), scale=scale)
    return lambda: measurement(zeros)


def nanoseconds(call: Callable[[], object], batch: int, seconds: float) -> float:
    """A draw's share of as many calls as fit into ``seconds``, one at least."""
    calls, began = 0, time.process_time()
    while (spent := time.process_time() - began) < seconds or not calls:
        call()
        calls += 1
    return 1e9 * spent / (calls * batch)


def measure(power: int, scale: float, batch: int, rounds: int) -> Line:
    """Both samplers by turns."""
    mine, other = ours(power, scale, batch), theirs(power, scale, batch)
    mine()
    other()
    pairs = [
        (nanoseconds(mine, batch, SECONDS), nanoseconds(other, batch, SECONDS))
        for _ in range(rounds)
    ]
    first, second = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Line(
        named(power, scale), batch, first, second, statistics.median(b / a for a, b in pairs)
    )


def building(power: int, scale: float) -> float:
    """Processor seconds that the first draw at a scale takes, with no tables built."""
    for kept in (sampler.recipe, sampler.table_of):
        kept.cache_clear()
    began = time.process_time()
    sampler.recipe(power, scale)
    return time.process_time() - began


def named(power: int, scale: float) -> str:
    return f"{'Gaussian' if power == sampler.GAUSSIAN else 'Laplace'} {scale:g}"


def table(lines: list[Line], first: dict[str, float]) -> str:
    """Markdown."""
    rows = [
        "| law | first time, ms | batch | ours, ns a draw | OpenDP, ns a draw | OpenDP by ours |",
        "|---|---|---|---|---|---|",
    ]
    for line in lines:
        times = f"{line.ours:,.0f} | {line.opendp:,.0f} | {line.ratio:.0f}"
        rows.append(f"| {line.law} | {1e3 * first[line.law]:.1f} | {line.batch:,} | {times} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--batches", type=int, nargs="+", default=[1, 10, 100_000], help="draws a call"
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of both, a count")
    parser.add_argument(
        "--out", type=Path, help="file for the table (Markdown); printed in any case"
    )
    args = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sampler.coin_table()
    first = {named(*law): building(*law) for law in LAWS}
    lines = [measure(*law, batch, args.rounds) for law in LAWS for batch in args.batches]
    text = table(lines, first)
    print(text, end="")
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
