"""What private rows' files are, before a row is read: their form, and whether they changed."""

import hashlib
import secrets
from contextlib import suppress
from pathlib import Path

from ...wall.datasets import arrays
from ...wall.datasets.data_config import DataConfig
from ...wall.datasets.databases import QUERY
from ...wall.datasets.folders import list_files
from ...wall.datasets.image_labels import is_image, require_told
from ...wall.datasets.sources import describe
from .private_records import INPUTS, inputs_of


def require_form(config: DataConfig) -> None:
    """Raise InvalidInput unless private rows have the form of the public ones.

    That is an array's dtype and shape, and the header of metadata.csv that tells images' labels or
    persons, which may be missing (MissingData). No row is read.
    """
    for setting in ("label", "person") if config.source == "folder" and config.private else ():
        require_told(config, setting, "data.private", Path(config.private or ""))
    if config.source != "arrays" or not Path(config.path or "").exists():
        return  # a missing file is an error where it is read
    path = arrays.require_arrays(config.path)
    if arrays.has_member(path, INPUTS):
        inputs_of(describe(config), arrays.member_form(path, INPUTS))


def source_digest(config: DataConfig) -> str:
    """A hash (hex) of what ``stream_records`` numbers: names of images, and size and time of
    change of other files. Of a query another one each time: nothing tells what a server
    holds. One for all published data sets, which do not change.
    """
    if config.source == "table" and Path(config.private or "").suffix.lower() == QUERY:
        return secrets.token_hex(32)
    places = [Path(place) for place in (config.private, config.path) if place]
    entries = list[tuple[object, ...]]()
    for place in places:
        for name in list_files(place) if place.is_dir() else [""]:
            if config.source == "folder" and is_image(name):
                entries.append((name,))
                continue
            with suppress(OSError):
                entries.append((name, (found := (place / name).stat()).st_size, found.st_mtime_ns))
    return hashlib.sha256(repr(entries).encode("utf-8", "surrogateescape")).hexdigest()
