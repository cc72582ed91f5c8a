"""What two copies of one process draw: same memory and process number, as after a snapshot.

    python -m tests.programs.snapshot NAME

``fork`` copies the memory. The C library's ``getpid`` is overwritten to return a constant, so that
no library can tell the copies apart by their process numbers.
"""

import ctypes
import json
import mmap
import os
import sys
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from labelwall.teacher.noise.entropy import SystemEntropy
from tests.teacher.noise import oracles

RETURN_ONE = bytes.fromhex("b801000000c3")  # x86-64: mov eax, 1; ret
SYSTEM = SystemEntropy()
DRAWS: dict[str, Callable[[], np.ndarray]] = {
    "gaussian": lambda: SYSTEM.discrete_gaussian(1e6, ["q"], "r", 20),
    "gaussian of a table": lambda: SYSTEM.discrete_gaussian(20.0, ["q"], "r", 60),
    "laplace": lambda: SYSTEM.discrete_laplace(1e6, ["q"], "r", 20),
    "choose": lambda: SYSTEM.choose(
        np.zeros((20, 1000), dtype=np.int64), [Fraction(1)] * 20, ["q"] * 20, "r"
    ),
    "inclusion": lambda: SYSTEM.inclusion(0.5, ["q"], "r", np.arange(200)[np.newaxis]),
    "opendp": lambda: oracles.gaussian(1e6, 20),
}


def fix_process_number() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.cast(libc.getpid, ctypes.c_void_p).value
    assert address is not None
    page = address & -mmap.PAGESIZE
    protection = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(2 * mmap.PAGESIZE), protection):
        raise OSError(ctypes.get_errno(), "mprotect")
    ctypes.memmove(address, RETURN_ONE, len(RETURN_ONE))
    assert os.getpid() == 1


def main(name: str) -> None:
    draw = DRAWS[name]
    fix_process_number()
    draw()  # whatever is set up once, is set up now
    reader, writer = os.pipe()
    child = os.fork()
    drawn = json.dumps(draw().tolist()).encode()
    if child == 0:
        os.write(writer, drawn)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        copied = pipe.read()
    os.waitpid(child, 0)
    print(json.dumps([json.loads(drawn), json.loads(copied)]))


if __name__ == "__main__":
    main(sys.argv[1])
