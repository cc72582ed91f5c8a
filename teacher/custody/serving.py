"""`serve`: the teacher of a configuration as a service."""

import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from types import MappingProxyType

from fastapi import FastAPI

from ...wall.console import Console
from ...wall.datasets.sources import describe
from ...wall.errors import InvalidInput
from ...wall.guarantee import EACH, POOLED
from ...wall.progress import Progress, no_progress
from ..accounting.accountant import certified_epsilon, require_affordable
from ..accounting.conversion import round_up
from ..custodian import Custodian
from ..noise.entropy import Entropy
from ..records.private_records import open_records
from ..service.app import create_app
from ..service.keys import Key, Keys, digest_of
from ..service.server import address, listen, server
from ..service.service import build_service
from ..service.service_config import ServiceConfig, Settings
from .opening import custody, teacher_factory
from .private_settings import PrivateSide

CHILD = "0" * 16  # public half of the child's only key, which its parent chooses
PAGE = (
    "a browser that opens this URL shows the custodian's page: any name, with a key of the role "
    "custodian (`labelwall keys add`) as its password. Ctrl-C ends the service"
)
LOADING = threading.Lock()  # one thread loads torch, whose modules import each other


def serve(
    side: PrivateSide,
    service: ServiceConfig,
    *,
    entropy: Entropy,
    features: Mapping[str, object] = MappingProxyType({}),
    child_of: str | None = None,
) -> None:
    """Answer requests until SIGTERM or Ctrl-C; prints the URL once requests are accepted.

    ``features``: what the custodian's configuration asks with, for analysts without one.
    ``child_of``: the secret of the run that started this process. Its key exists in memory alone,
    and the service ends with the standard input, which closes when the run ends.

    Raises BudgetRefused, LedgerMismatch, InvalidInput, MissingData, before anything is answered.
    """
    if side.directory is None:
        raise InvalidInput.missing("custodian_dir", "the ledger and the keys lie there")
    require_affordable(side.plan())
    each = service.budget == "per_analyst"
    if each and side.scale.shards:
        # Refused before the directory is set up for analysts with their own budgets.
        rule = "0 with service.budget: per_analyst"
        raise InvalidInput("scale.shards", rule, side.scale.shards)
    against = EACH if each else POOLED
    with closing(custody(side, entropy.unsafe, [against], Console())) as custodian:
        require_affordable(custodian.plan)  # an earlier version may have solved it
        more = {CHILD: Key("run", "analyst", digest_of(child_of))} if child_of else {}
        # A run shows what its child says, and progress on private rows tells how many there are
        progress = no_progress if child_of else Console().progress
        keys = Keys(side.directory, more)
        app = app_of(side, service, custodian, keys, entropy, features, progress=progress)
        with listen(service) as bound:
            running = server(app, service)

            def wait() -> None:
                """For the end of the run that started this process; then the service ends."""
                sys.stdin.read()
                running.handle_exit(signal.SIGTERM, None)

            if child_of:
                threading.Thread(target=wait, daemon=True).start()
            # Before uvicorn takes the signal over, and when it raises it again, having stopped.
            signal.signal(signal.SIGTERM, running.handle_exit)
            print(address(service, bound), flush=True)
            if not child_of:
                Console().say(PAGE)
            running.run(sockets=[bound])


def app_of(
    side: PrivateSide,
    service: ServiceConfig,
    custodian: Custodian,
    keys: Keys,
    entropy: Entropy,
    features: Mapping[str, object] = MappingProxyType({}),
    progress: Progress = no_progress,
) -> FastAPI:
    """The application over an opened custodian's directory. Raises InvalidInput, MissingData."""
    task, data = describe(side.data), side.data
    settings = Settings(
        config=service,
        task=task,
        entropy=entropy,
        certified=None if entropy.unsafe else round_up(certified_epsilon(custodian.plan)),
        sharded=teacher_factory(side, task) if side.scale.shards else None,
        scale=side.scale,
        batch_size=side.batch_size,
        workers=side.workers,
        device=side.device,
        progress=progress,
        features=features,
        load=partial(load_torch, side.threads),
    )
    records = partial(open_records, data, task, unit=side.privacy.unit)
    return create_app(build_service(custodian, records, settings), keys)


def load_torch(threads: int) -> None:
    """Load torch, with that many threads, once requests are accepted."""
    with LOADING:
        import torch

        torch.set_num_threads(threads)
