"""Results that are complete or not there: written beside their place, then moved."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...wall.errors import InvalidInput


@contextmanager
def writing(out: Path) -> Iterator[Path]:
    """A path to write a file or a folder to, which becomes ``out`` where nothing fails.

    A folder takes the place of none but an empty one. What a killed process left there is removed
    first. Raises InvalidInput where ``out`` can not be written.
    """
    scratch = out.with_name(out.name + ".part")
    try:
        _remove(scratch)
        yield scratch
        scratch.replace(out)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidInput("out", f"a place that can be written ({reason})", str(out)) from error
    finally:
        _remove(scratch)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
