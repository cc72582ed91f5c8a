"""Products of at most 16 int8 queries with many records, by the processor's VNNI instructions.

oneDNN copies both factors into a layout of its own, which pays where each row is used often. For a
few queries this kernel reads every record once, from where it is stored.

The instruction vpdpbusd adds the products of four unsigned bytes with four signed ones to an int32,
16 times at once. The 16 lanes are the queries. Their entries plus 128 are the unsigned bytes u, and
q.x = u.x - 128 sum(x), all of it exact: |u.x| <= 255 * 128 d < 2^31. numba has no vectors, so
the inner loop is written in LLVM's language (llvmlite).
"""

from __future__ import annotations

from functools import lru_cache, reduce
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from .top_k import compiled

QUERIES = 16  # int32 lanes of a register
RECORDS = 8  # multiplied together, with a register of sums each
MIN_DIMENSIONS = 4  # of one instruction's lane
MAX_DIMENSIONS = 1 << 16  # 255 * 128 * 2^16 < 2^31

I32, I64 = ir.IntType(32), ir.IntType(64)
BYTE = ir.IntType(8).as_pointer()
LANES = ir.VectorType(I32, QUERIES)
HALF = ir.VectorType(I32, RECORDS)
BYTES = ir.VectorType(ir.IntType(8), 64)
MASK = ir.VectorType(ir.IntType(1), 64)
NOTHING = ir.Constant(LANES, [0] * QUERIES)
BYTES_OF_ONE = ir.Constant(LANES, [0x01010101] * QUERIES)
# Two registers are shuffled into two: where the lanes of each come from, the second's from 16 on.
LOWER = [n // 2 + QUERIES * (n % 2) for n in range(QUERIES)]
UPPER = [n + QUERIES // 2 for n in LOWER]


def product(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    """out[i, j] = left[i] . right[j]: int8 [a, d], int8 [b, d] into int32 [a, b].

    Raises ValueError for arrays that ``fits`` refuses.
    """
    if not fits(left, right, out):
        raise ValueError(f"no product of {left.shape} and {right.shape} into {out.shape}")
    _multiply(right, _lanes(left), out)


def fits(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> bool:
    """Whether ``product`` takes these: 1 to 16 rows and 8 or more, of 4 to 2^16 dimensions.

    The kernel computes addresses itself: rows lie one behind the other.
    """
    kinds = left.dtype == right.dtype == np.int8 and out.dtype == np.int32
    lie = right.flags.c_contiguous and out.flags.c_contiguous
    matches = left.shape[1] == right.shape[1] and out.shape == (len(left), len(right))
    enough = 0 < len(left) <= QUERIES and len(right) >= RECORDS
    return (
        kinds and lie and matches and enough and MIN_DIMENSIONS <= left.shape[1] <= MAX_DIMENSIONS
    )


def instructions() -> set[str]:
    """LLVM's names of the processor's instruction sets."""
    features = cpu_target.target_context.codegen().magic_tuple()[2]
    return {feature[1:] for feature in features.split(",") if feature.startswith("+")}


@lru_cache(maxsize=1)
def is_available() -> bool:
    """Whether numba compiles for a processor with AVX-512 VNNI, and the products are right."""
    if "avx512vnni" not in instructions():
        return False
    right = (np.arange(19 * 4003) * 97 % 256 - 128).astype(np.int8).reshape(19, 4003)
    right[0], right[1] = 127, -128  # the largest sums
    products = np.zeros((3, 19), dtype=np.int32)
    try:
        product(right[:3], right, products)
    except (NumbaError, NotImplementedError, RuntimeError):  # another LLVM, or no compiler
        return False
    return np.array_equal(products, right[:3].astype(np.int32) @ right.astype(np.int32).T)


def _lanes(left: np.ndarray) -> np.ndarray:
    """The queries' entries plus 128, four dimensions of all queries together: uint32 [steps, 16].

    A last step of fewer dimensions holds them behind zeros: the kernel reads the last four.
    """
    queries, dimensions = left.shape
    rest = dimensions % 4
    unsigned = np.zeros((QUERIES, dimensions + (4 - rest) % 4), dtype=np.uint8)
    unsigned[:queries, : dimensions - rest] = left[:, : dimensions - rest].view(np.uint8) ^ 128
    if rest:
        unsigned[:queries, -rest:] = left[:, -rest:].view(np.uint8) ^ 128
    return np.ascontiguousarray(unsigned.view(np.uint32).T)


def _tile_of(typing: Any, right: Any, first: Any, lanes: Any, out: Any) -> Any:
    """out[:, j] for the RECORDS records j from ``first`` on."""

    def generate(context: Any, build: ir.IRBuilder, signature: Any, values: Any) -> Any:
        records, queries, target = (
            context.make_array(signature.args[n])(context, build, values[n]) for n in (0, 2, 3)
        )
        dimensions = build.extract_value(records.shape, 1)
        place = build.mul(values[1], dimensions)
        tile = build.gep(build.bitcast(records.data, BYTE), [place])
        rows = [build.gep(tile, [build.mul(dimensions, I64(n))]) for n in range(RECORDS)]
        products = _products(build, rows, dimensions, build.bitcast(queries.data, BYTE))
        bias = build.shl(_sums(build, rows, dimensions), ir.Constant(HALF, [7] * RECORDS))
        count, columns = (build.extract_value(target.shape, axis) for axis in (0, 1))
        for query, line in enumerate(products):
            with build.if_then(build.icmp_signed("<", I64(query), count)):
                place = build.add(build.mul(columns, I64(query)), values[1])
                there = build.bitcast(build.gep(target.data, [place]), HALF.as_pointer())
                build.store(build.sub(line, bias), there, align=1)
        return context.get_dummy_value()

    return types.void(right, first, lanes, out), generate


_multiply_tile: Any = intrinsic(_tile_of)


@compiled
def _multiply(right: np.ndarray, lanes: np.ndarray, out: np.ndarray) -> None:
    """The last records are multiplied again where their number is no multiple of RECORDS."""
    count = len(right)
    for tile in range((count + RECORDS - 1) // RECORDS):
        _multiply_tile(right, min(RECORDS * tile, count - RECORDS), lanes, out)


def _products(build: ir.IRBuilder, rows: list[Any], dimensions: Any, queries: Any) -> list[Any]:
    """u.x of each query with all rows: 16 registers of RECORDS lanes."""
    sums = [cgutils.alloca_once_value(build, NOTHING) for _ in rows]
    last = build.sub(dimensions, I64(4))
    next_tile = build.gep(rows[0], [build.mul(dimensions, I64(RECORDS))])
    steps = build.sdiv(build.add(dimensions, I64(3)), I64(4))
    with cgutils.for_range(build, steps) as loop:
        at = build.mul(loop.index, I64(4))
        at = build.select(build.icmp_signed("<", at, last), at, last)
        unsigned = _load(build, build.gep(queries, [build.mul(loop.index, I64(64))]), LANES)
        ahead = build.gep(next_tile, [build.mul(loop.index, I64(4 * RECORDS))])
        _call(build, "llvm.prefetch.p0", ir.VoidType(), [ahead, I32(0), I32(2), I32(1)])
        for row, total in zip(rows, sums, strict=True):
            four = _load(build, build.gep(row, [at]), I32)
            one = build.insert_element(ir.Constant(LANES, ir.Undefined), four, I32(0))
            _add_products(build, total, unsigned, build.shuffle_vector(one, one, NOTHING))
    lines = _transposed(build, [build.load(total) for total in sums])
    return [half for line in lines for half in _halves(build, line)]


def _sums(build: ir.IRBuilder, rows: list[Any], dimensions: Any) -> Any:
    """The sum of each row's entries: RECORDS lanes."""
    sums = [cgutils.alloca_once_value(build, NOTHING) for _ in rows]
    full = build.and_(dimensions, I64(-64))
    with cgutils.for_range_slice(build, I64(0), full, I64(64), I64) as (at, _):
        for row, total in zip(rows, sums, strict=True):
            entries = _load(build, build.gep(row, [at]), LANES)
            _add_products(build, total, BYTES_OF_ONE, entries)
    rest = build.sub(dimensions, full)
    mask = build.bitcast(build.sub(build.shl(I64(1), rest), I64(1)), MASK)
    for row, total in zip(rows, sums, strict=True):
        there = build.bitcast(build.gep(row, [full]), BYTES.as_pointer())
        arguments = [there, I32(1), mask, ir.Constant(BYTES, [0] * 64)]
        entries = _call(build, "llvm.masked.load.v64i8.p0", BYTES, arguments)
        _add_products(build, total, BYTES_OF_ONE, build.bitcast(entries, LANES))
    lines = _transposed(build, [build.load(total) for total in sums])
    halves = [half for line in lines for half in _halves(build, line)]
    return reduce(build.add, halves)


def _add_products(build: ir.IRBuilder, total: Any, unsigned: Any, signed: Any) -> None:
    arguments = [build.load(total), unsigned, signed]
    build.store(_call(build, "llvm.x86.avx512.vpdpbusd.512", LANES, arguments), total)


def _transposed(build: ir.IRBuilder, lines: list[Any]) -> list[Any]:
    """8 registers of 16 lanes, as 8 of twice 8: three perfect shuffles of all 128 entries."""
    half = RECORDS // 2
    for _ in range(3):
        lines = [
            build.shuffle_vector(lines[n], lines[n + half], ir.Constant(LANES, places))
            for n in range(half)
            for places in (LOWER, UPPER)
        ]
    return lines


def _halves(build: ir.IRBuilder, line: Any) -> list[Any]:
    places = list(range(RECORDS)), list(range(RECORDS, QUERIES))
    return [build.shuffle_vector(line, line, ir.Constant(HALF, part)) for part in places]


def _load(build: ir.IRBuilder, address: Any, kind: ir.Type) -> Any:
    return build.load(build.bitcast(address, kind.as_pointer()), align=1)


def _call(build: ir.IRBuilder, name: str, returns: ir.Type, arguments: list[Any]) -> Any:
    kind = ir.FunctionType(returns, [argument.type for argument in arguments])
    return build.call(cgutils.get_or_insert_function(build.module, kind, name), arguments)
