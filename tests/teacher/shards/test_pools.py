"""Only a cluster that requires our token is used, and our own keeps its files private."""

import fcntl
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from labelwall.teacher.shards import pools
from labelwall.teacher.shards.pools import CHECK_ALIVE, connect, require_locked
from labelwall.teacher.shards.scale_config import ScaleConfig
from labelwall.wall.errors import InvalidInput


@pytest.mark.parametrize(
    ("mode", "address"),
    [("disabled", None), ("disabled", "127.0.0.1:6379"), (None, "127.0.0.1:6379"), ("k8s", None)],
)
def test_clusters_without_a_token_are_refused(monkeypatch, mode, address):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with pytest.raises(InvalidInput, match="RAY_AUTH_MODE"):
        connect(ScaleConfig(backend="ray", shards=1, ray_address=address))


@contextmanager
def head(accepts):
    """The address of a cluster's head that accepts the header, or does not know the request
    (None)."""
    import grpc

    def answer(_, context):
        if not accepts(dict(context.invocation_metadata()).get("authorization")):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no")
        return b""

    service, method = CHECK_ALIVE.strip("/").split("/")
    known = grpc.method_handlers_generic_handler(
        service, {method: grpc.unary_unary_rpc_method_handler(answer)}
    )
    server = grpc.server(ThreadPoolExecutor(1), handlers=[known] if accepts else [])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


TOKEN = {"authorization": "Bearer " + 64 * "5"}


def test_a_head_that_knows_our_token_and_no_stranger_is_used():
    with head(lambda header: header == TOKEN["authorization"]) as address:
        require_locked(address, TOKEN)


@pytest.mark.parametrize(
    ("accepts", "part"),
    [
        (lambda header: True, "a cluster that asks for a token"),
        (lambda header: header is None, "a cluster that asks for a token"),
        (lambda header: False, "RAY_AUTH_TOKEN"),
        (None, "can be reached"),
    ],
    ids=["open", "open to strangers", "another token", "no head"],
)
def test_other_heads_are_refused(accepts, part):
    with head(accepts) as address, pytest.raises(InvalidInput, match=part) as caught:
        require_locked(address, TOKEN)
    assert 64 * "5" not in str(caught.value)
    with pytest.raises(InvalidInput, match="can be reached"):  # no server any more
        require_locked(address, TOKEN)


def test_files_of_a_killed_process_go_with_the_next_start(tmp_path, monkeypatch):
    """A directory whose lock is free is deleted; one in use, a new one and a foreign one stay."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    class Owner:
        pass

    owner = Owner()
    first = Path(pools._private_directory(owner))
    assert first.stat().st_mode & 0o777 == 0o700
    used, left, new, foreign = (
        tmp_path / name for name in ("lw-ray-used", "lw-ray-left", "lw-ray-new", "lwother")
    )
    for place in (used, left, new, foreign):
        place.mkdir()
        (place / "spilled").touch()
    for place in (used, left, foreign):
        (place / "lock").touch()
    with (used / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = Path(pools._private_directory(owner))
    assert set(tmp_path.iterdir()) == {first, second, used, new, foreign}
    del owner
    assert not first.exists()
    assert not second.exists()
