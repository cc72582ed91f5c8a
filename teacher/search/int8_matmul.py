"""Exact products of int8 rows on the processor, in any batch and number of threads.

Up to 16 queries have a kernel of their own. oneDNN copies both factors into a layout of its own,
which pays where each row is used often; the kernel reads every record once, where it is stored. The
instruction vpdpbusd adds the products of four unsigned bytes with four signed ones to an int32, 16
times at once. The 16 lanes are the queries. Their entries plus 128 are the unsigned bytes u, and
q.x = u.x - 128 sum(x), all of it exact: |u.x| <= 255 * 128 d < 2^31. numba has no vectors, so the
inner loop is written in LLVM's language (llvmlite).
"""

from functools import lru_cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from ...wall.matrices import MAX_DIMENSIONS, MAX_ENTRY
from .kernels import Product, minus_twice
from .loops import compiled

FLOAT32_ROWS = 4096  # records of a float32 block: at most 64 MiB, and its products stay in cache
FAST_INT8 = {"avx512vnni", "avxvnni", "amx-int8"}  # without them, oneDNN's int8 kernel is slow

QUERIES = 16  # of the kernel: int32 lanes of a register
RECORDS = 8  # multiplied together, with two registers of sums each
BYTES = 4 * QUERIES  # of a register
BIT, I32, I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
LANES = ir.VectorType(I32, QUERIES)
VECTOR, LOAD = ir.VectorType(ir.IntType(8), BYTES), "llvm.masked.load.v64i8.p0"
NOTHING = ir.Constant(LANES, [0] * QUERIES)
BYTES_OF_ONE = ir.Constant(LANES, [0x01010101] * QUERIES)


def int8_product(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    """out[i, j] = left[i] . right[j]: int8 [a, d], int8 [b, d] into int32 [a, b].

    By the kernel of few queries where it fits, else by oneDNN's through torch.
    """
    if fits(left, right, out) and has_kernel():
        few_queries_product(left, right, out)
        return
    import torch

    rows, columns = torch.from_numpy(left), torch.from_numpy(right)
    torch._int_mm(rows, columns.T, out=torch.from_numpy(out))


def float32_product(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    """``int8_product`` by numpy's float32 product, for an even ``left`` (``minus_twice``).

    Every partial sum is an even integer below 2^25, hence exact. torch's float32 products would not
    be: they drop to bfloat16 when a process asks for "medium" precision.
    """
    rows = left.astype(np.float32)
    for start in range(0, len(right), FLOAT32_ROWS):
        block = right[start : start + FLOAT32_ROWS].astype(np.float32)
        out[:, start : start + FLOAT32_ROWS] = rows @ block.T


@lru_cache(maxsize=1)
def best_product() -> Product:
    """``int8_product`` where the processor has instructions for it and torch's private function is
    there and right; else ``float32_product``.
    """
    fast = FAST_INT8 & instructions() and is_exact(int8_product, 40)
    return int8_product if fast else float32_product


@lru_cache(maxsize=1)
def has_kernel() -> bool:
    """Whether numba compiles for a processor with AVX-512 VNNI, and the kernel is right."""
    return "avx512vnni" in instructions() and is_exact(few_queries_product, 3)


def instructions() -> set[str]:
    """LLVM's names of the processor's instruction sets."""
    features = cpu_target.target_context.codegen().magic_tuple()[2]
    return {feature[1:] for feature in features.split(",") if feature.startswith("+")}


def is_exact(product: Product, queries: int, dimensions: int = MAX_DIMENSIONS) -> bool:
    """Whether a product is there, and right at the largest entries."""
    entries = np.arange(4 * queries * dimensions).reshape(4 * queries, dimensions)
    right = (entries * 97 % (2 * MAX_ENTRY + 1) - MAX_ENTRY).astype(np.int8)
    right[0], right[1] = MAX_ENTRY, -MAX_ENTRY
    left, out = minus_twice(right[:queries]), np.zeros((queries, len(right)), dtype=np.int32)
    try:
        product(left, right, out)
    except (AttributeError, NumbaError, NotImplementedError, RuntimeError):
        return False
    # Integers far below 2^53
    return np.array_equal(out, left.astype(np.float64) @ right.astype(np.float64).T)


def few_queries_product(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    """``int8_product`` by the kernel, for arrays that it ``fits``."""
    unsigned = np.zeros((QUERIES, left.shape[1]), dtype=np.uint8)
    unsigned[: len(left)] = left.view(np.uint8) ^ 128
    # Four dimensions of all queries together: uint32 [d / 4, 16]
    lanes = np.ascontiguousarray(unsigned.view(np.uint32).T)
    _multiply(right, lanes, np.empty((RECORDS + 1, QUERIES), dtype=np.int32), out)


def fits(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> bool:
    """Whether the kernel takes these: 1 to 16 rows and 8 or more, of 4, 8, ... 4000 dimensions.

    The kernel computes addresses itself: rows lie one behind the other.
    """
    kinds = left.dtype == right.dtype == np.int8 and out.dtype == np.int32
    matches = left.shape[1] == right.shape[1] and out.shape == (len(left), len(right))
    enough = 0 < len(left) <= QUERIES and len(right) >= RECORDS
    dimensions = right.shape[1] % 4 == 0 < right.shape[1] <= MAX_DIMENSIONS
    return kinds and right.flags.c_contiguous and matches and enough and dimensions


@compiled
def _multiply(right: np.ndarray, lanes: np.ndarray, tile: np.ndarray, out: np.ndarray) -> None:
    """The last records are multiplied again where their number is no multiple of RECORDS.

    Indices are unsigned: numba checks each signed one for being negative.
    """
    count = len(right)
    for number in range((count + RECORDS - 1) // RECORDS):
        first = min(RECORDS * number, count - RECORDS)
        _multiply_tile(right, first, lanes, tile)
        for query in range(np.uint64(len(out))):
            line = out[query]
            for record in range(np.uint64(RECORDS)):
                total = tile[np.uint64(RECORDS), record]
                line[np.uint64(first) + record] = tile[record, query] - 128 * total


def _tile_of(typing: Any, right: Any, first: Any, lanes: Any, tile: Any) -> Any:
    """Products of RECORDS records x from ``first`` on: u.x of all queries, then sum(x) of all."""

    def generate(context: Any, build: ir.IRBuilder, signature: Any, values: Any) -> Any:
        records, queries, target = (
            context.make_array(signature.args[n])(context, build, values[n]) for n in (0, 2, 3)
        )
        steps = build.sdiv(build.extract_value(records.shape, 1), I64(4))
        rows = [build.mul(steps, build.add(values[1], I64(n))) for n in range(RECORDS + 1)]
        entries = build.bitcast(records.data, I32.as_pointer())
        unsigned = build.bitcast(queries.data, LANES.as_pointer())
        totals = [cgutils.alloca_once_value(build, NOTHING) for _ in range(2 * RECORDS)]
        with cgutils.for_range(build, steps) as loop:
            query = build.load(build.gep(unsigned, [loop.index]), align=1)
            next_tile = build.add(rows[-1], build.mul(loop.index, I64(RECORDS)))
            ahead = build.bitcast(build.gep(entries, [next_tile]), ir.IntType(8).as_pointer())
            _call(build, "llvm.prefetch.p0", ir.VoidType(), [ahead, I32(0), I32(2), I32(1)])
            for row, total in zip(rows[:-1], totals[:RECORDS], strict=True):
                four = build.load(build.gep(entries, [build.add(row, loop.index)]), align=1)
                one = build.insert_element(ir.Constant(LANES, ir.Undefined), four, I32(0))
                _add_products(build, total, query, build.shuffle_vector(one, one, NOTHING))
        full = build.and_(steps, I64(-QUERIES))
        left = build.shl(build.sub(steps, full), I64(2))  # bytes in the last part of a register
        some = build.bitcast(build.sub(build.shl(I64(1), left), I64(1)), ir.VectorType(BIT, BYTES))
        with cgutils.for_range_slice(build, I64(0), full, I64(QUERIES), I64) as (at, _):
            for row, total in zip(rows[:-1], totals[RECORDS:], strict=True):
                there = build.bitcast(build.gep(entries, [build.add(row, at)]), LANES.as_pointer())
                _add_products(build, total, BYTES_OF_ONE, build.load(there, align=1))
        for row, total in zip(rows[:-1], totals[RECORDS:], strict=True):
            there = build.bitcast(build.gep(entries, [build.add(row, full)]), VECTOR.as_pointer())
            nothing = ir.Constant(VECTOR, [0] * BYTES)
            rest = _call(build, LOAD, VECTOR, [there, I32(1), some, nothing])
            _add_products(build, total, BYTES_OF_ONE, build.bitcast(rest, LANES))
        lines = build.bitcast(target.data, LANES.as_pointer())
        for n, total in enumerate(totals[:RECORDS]):
            build.store(build.load(total), build.gep(lines, [I64(n)]), align=1)
        sums = build.bitcast(build.gep(lines, [I64(RECORDS)]), I32.as_pointer())
        for n, total in enumerate(totals[RECORDS:]):
            added = _call(build, "llvm.vector.reduce.add.v16i32", I32, [build.load(total)])
            build.store(added, build.gep(sums, [I64(n)]), align=1)
        return context.get_dummy_value()

    return types.void(right, first, lanes, tile), generate


def _add_products(build: ir.IRBuilder, total: Any, unsigned: Any, signed: Any) -> None:
    arguments = [build.load(total), unsigned, signed]
    build.store(_call(build, "llvm.x86.avx512.vpdpbusd.512", LANES, arguments), total)


def _call(build: ir.IRBuilder, name: str, returns: ir.Type, arguments: list[Any]) -> Any:
    kind = ir.FunctionType(returns, [argument.type for argument in arguments])
    return build.call(cgutils.get_or_insert_function(build.module, kind, name), arguments)


_multiply_tile: Any = intrinsic(_tile_of)
