"""Shared fixtures: tiny image folders, opened files, real data sets, a PostgreSQL server.

Noise is the same in every run, except in tests that are marked ``fresh_noise``.
"""

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

# Before torch is loaded, and for every program that a test starts: the workers of pytest-xdist use
# all cores already, and a second thread would only spin for its turn.
os.environ["OMP_NUM_THREADS"] = "1"
# In memory where there is room: nobody waits for a disk, and a killed process leaves the same.
if os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

import anyio
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from PIL import Image

from labelwall.teacher.ledger.url import Place
from tests.postgres import Server, new_server
from tests.programs.watched import recorded
from tests.seeded_noise import keys_of

REPOSITORY = Path(__file__).parents[1]
# One colour a class: a decoded image tells where it came from.
COLOURS = {
    "cat": (200, 30, 30),
    "dog": (30, 30, 200),
}

# The same examples in every run, however slow the machine is.
settings.register_profile(
    "labelwall", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("labelwall")

# The user's cache is another one, but for matplotlib's fonts, which take long.
os.environ.setdefault("MPLCONFIGDIR", os.path.expanduser("~/.cache/matplotlib"))
CACHE = tempfile.TemporaryDirectory(prefix="labelwall-cache-")
os.environ["XDG_CACHE_HOME"] = CACHE.name


# anyio loads the rest of itself where it first runs: in a test, in the service's thread. pytest
# parses what it loads of a plugin, and CPython 3.11 can not parse in two threads at once.
anyio.run(anyio.sleep, 0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test's noise is its own: the same alone, in another order and in another process."""
    if item.get_closest_marker("fresh_noise"):
        return (yield)
    with keys_of(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """What several tests share does not depend on which of them comes first."""
    if fixturedef.scope == "function":
        return (yield)
    place: int = request.param_index  # type: ignore[attr-defined]  # of its subclass
    with keys_of(f"{request.node.nodeid} {request.fixturename} {place}"):
        return (yield)


@pytest.fixture(autouse=True)
def as_in_a_new_process() -> Iterator[None]:
    """Neither the global generators nor torch's threads, which commands set, depend on it."""
    random.seed(0)
    np.random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)
    yield
    if (torch := sys.modules.get("torch")) is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture
def opened() -> Callable[[], AbstractContextManager[list[str]]]:
    """`with opened() as paths:`, as tests.programs.watched.recorded."""
    return recorded


@pytest.fixture
def image_folders(tmp_path: Path) -> dict[str, str]:
    """Folders private, public and test with 6 PNG images of cats and dogs each, 12 x 10 pixels."""
    for split in ("private", "public", "test"):
        for name, colour in COLOURS.items():
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for number in range(6):
                pixels = np.full((10, 12, 3), colour, dtype=np.uint8)
                pixels[..., 1] = number  # no two images of a class are the same
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return {split: str(tmp_path / split) for split in ("private", "public", "test")}


@pytest.fixture(scope="session")
def realdata_root() -> Path:
    """The folder of real data sets in torchvision's layout. Skips where it is missing."""
    root = Path(os.environ.get("LABELWALL_DATA") or REPOSITORY.parent / "shared" / "data")
    if not root.is_dir():
        pytest.skip(f"no real data sets: {root} is not a folder. Name one in LABELWALL_DATA.")
    return root


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A throw-away PostgreSQL server. Skips where its programs are not installed."""
    with new_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place for a ledger: a file, or a schema of a server. A test that takes it runs on both."""
    return (
        tmp_path / "ledger.sqlite"
        if request.param == "sqlite"
        else request.getfixturevalue("postgres").schema()
    )


@pytest.fixture(params=["sqlite", "postgresql"])
def socket(request: pytest.FixtureRequest) -> str:
    """A sweep's socket directory, empty for files. A test that takes it runs on both."""
    return "" if request.param == "sqlite" else str(request.getfixturevalue("postgres").home)
