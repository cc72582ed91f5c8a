"""Files in folders: their names, in an order that no library changes, and texts in them."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from .texts import LONGEST

SUFFIX = ".txt"  # of a text


def stable_hash(text: str) -> int:
    """The first 63 bits of a name's SHA-256, a non-negative int64.

    Any text has one: halves of surrogate pairs, which UTF-8 has no bytes for, are kept.
    """
    try:
        content = text.encode(errors="surrogateescape")  # file names that are not UTF-8
    except UnicodeEncodeError:
        content = text.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 1


def constant_order(names: Iterable[str]) -> np.ndarray:
    """int64 [n]: a shuffle that no library changes, positions of names by their stable hash."""
    return np.argsort(np.array([stable_hash(name) for name in names], dtype=np.int64))


def is_hidden(folder: str) -> bool:
    """Whether a folder's name says that it is no one's data: macOS packs __MACOSX with its own."""
    return folder.startswith(".") or folder == "__MACOSX"


def list_files(root: Path) -> list[str]:
    """Relative POSIX paths of all files under ``root``, sorted; ``walk`` without hidden files."""
    paths = list[str]()
    for folder, _, files in walk(root):
        inside = Path(folder).relative_to(root)
        paths += [(inside / name).as_posix() for name in files if not name.startswith(".")]
    return sorted(paths)


def walk(root: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """``os.walk`` without hidden folders. Links are followed, but not to a folder around them."""
    above = {os.fspath(root): {identity(root)}}
    for folder, folders, files in os.walk(root, followlinks=True):
        known = above.pop(folder)  # this folder and those that it lies in
        for name in folders:
            place = os.path.join(folder, name)
            if not is_hidden(name) and (own := identity(place)) not in known:
                above[place] = known | {own}
        folders[:] = [name for name in folders if os.path.join(folder, name) in above]
        yield folder, folders, files


def identity(place: str | Path) -> tuple[int, int] | None:
    """What tells a file or folder from others, by whatever name; None if it is not there."""
    with suppress(OSError, ValueError):  # which would quote a name
        status = os.stat(place)
        return status.st_dev, status.st_ino
    return None


def text_files(root: Path) -> list[str]:
    """The texts among a folder's files, in a constant order that mixes the classes."""
    paths = [path for path in list_files(root) if path.lower().endswith(SUFFIX)]
    return [paths[place] for place in constant_order(paths)]


def is_text_folder(root: Path) -> bool:
    """Whether more than half of the files in a PUBLIC folder are texts."""
    return root.is_dir() and 2 * len(text_files(root)) > len(list_files(root))


def read_text(path: Path) -> str:
    """The first characters of a file, "" if it can not be read; its codes if it is not UTF-8."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return ""
        with path.open("rb") as file:
            return file.read(4 * LONGEST).decode("utf-8-sig", errors="backslashreplace")
    except OSError:
        return ""
