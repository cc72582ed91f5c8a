"""Free memory between blocks in use. Prints the resident MiB before and after its return.

python -m tests.programs.returned_memory
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from labelwall.teacher.service.arenas import return_free_memory

SIZE, COUNT = 64_000, 2_000  # bytes of a block, below what malloc maps by itself
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]


def resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


blocks = [libc.malloc(size) for _ in range(COUNT) for size in (SIZE, 100)]
for block in blocks[::2]:
    ctypes.memset(block, 1, SIZE)
for block in blocks[::2]:
    libc.free(block)
print(resident())
return_free_memory()
print(resident())
