"""Threads that allocate at the same time. Prints how many arenas glibc made for them.

python -m tests.programs.arenas PATH [shared]
"""

from __future__ import annotations

import ctypes
import sys
import threading
from pathlib import Path

from labelwall.teacher.service.arenas import share_arenas

libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
path = Path(sys.argv[1])
if "shared" in sys.argv:
    share_arenas()
together = threading.Barrier(16)


def allocate() -> None:
    together.wait()
    for _ in range(200):
        assert libc.malloc(1000)
    together.wait()


threads = [threading.Thread(target=allocate) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
file = ctypes.c_void_p(libc.fopen(str(path).encode(), b"w"))
assert libc.malloc_info(0, file) == 0
libc.fclose(file)
print(path.read_text().count("<heap nr="))
