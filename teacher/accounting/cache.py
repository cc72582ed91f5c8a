"""Curves on disk: public numbers that take seconds to compute, keyed by public parameters only.

A file holds SHA-256(key and payload), then the payload, a little-endian float64. Anything else
(missing, short, corrupt, unreadable, a folder that can not be written) means: compute again. The
folder is the user's own; who can write there can change the program too. An audit reads none of it
(``computed_anew``).
"""

import contextlib
import hashlib
import math
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path

import numpy as np

from ...wall.messages import canonical_json

_USED = ContextVar("used", default=True)


@contextlib.contextmanager
def computed_anew() -> Iterator[None]:
    """No file is read or written within."""
    token = _USED.set(False)
    try:
        yield
    finally:
        _USED.reset(token)


def folder() -> Path:
    """$XDG_CACHE_HOME/labelwall/curves, by default under ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "labelwall" / "curves"


def cached(
    keys: Sequence[dict[str, object]], compute: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """A number for each key, float64 [n]: those of earlier calls, and the others together.

    ``keys``: every input and a version. ``compute``: of the places of new keys (int64 [m]), float64
    [m].
    """
    names, values = [canonical_json(key) for key in keys], np.empty(len(keys))
    new = []
    for place, name in enumerate(names):
        known = _read(_path(name), name)
        if known is not None and math.isfinite(known):
            values[place] = known
        else:
            new.append(place)
    if new:
        values[new] = compute(np.array(new))
        for place in new:
            path = _path(names[place])
            if path is not None:
                with contextlib.suppress(OSError):
                    _write(path, names[place], values[place])
    return values


def _path(name: bytes) -> Path | None:
    """Where the numbers of a key are, None where no file is used."""
    with contextlib.suppress(RuntimeError):  # no home directory
        return folder() / f"{hashlib.sha256(name).hexdigest()}.f64" if _USED.get() else None
    return None


def _read(path: Path | None, name: bytes) -> float | None:
    data = b""
    with contextlib.suppress(OSError):
        data = path.read_bytes() if path is not None else b""
    digest, payload = data[:32], data[32:]
    if len(payload) != 8 or hashlib.sha256(name + payload).digest() != digest:
        return None
    return float(struct.unpack("<d", payload)[0])


def _write(path: Path, name: bytes, value: float) -> None:
    """In one step: a reader sees the whole file or none."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    payload = struct.pack("<d", value)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(name + payload).digest() + payload)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
