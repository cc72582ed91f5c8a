"""The teacher of a run: in this process, in a child process, or behind a URL; one interface."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from ...teacher.accounting.plan import Plan
from ...teacher.custodian import Custodian, open_custodian
from ...teacher.noise.entropy import Entropy
from ...teacher.records.sources import open_records, stream_records
from ...teacher.service.keys import token_of
from ...teacher.teacher import Teacher
from ...wall.answering import Answering
from ...wall.client import RETRIED, RemoteTeacher
from ...wall.console import Console
from ...wall.datasets.config import Task
from ...wall.errors import InvalidInput, LabelwallError, LedgerMismatch, Refused
from ...wall.guarantee import POOLED, protected
from ...wall.progress import Progress, no_progress
from ..config.private_side import PrivateSide
from ..config.settings import to_yaml
from ..data import PART, ROWS
from .custodians import Custodians
from .places import identity, tell_budgets

# The environment variable with the API key. A key is no setting, so no file records it.
KEY = "LABELWALL_KEY"
CHILD = "0" * 16  # public half of the child's only key, which its parent chooses
PROGRAM = "labelwall.pipeline"


@contextmanager
def teacher_of(
    side: PrivateSide,
    task: Task,
    entropy: Entropy,
    console: Console,
    dataset: str | None = None,
    *,
    left_out: Path,
    isolate: bool = False,
) -> Iterator[Answering]:
    """The teacher that the private side's settings name.

    With a URL it is that service, with a list of them all of these. Otherwise it works on the
    custodian's directory: in this process, or, to ``isolate`` it, in a child process, which has no
    other settings. ``dataset``: to which the (first one's) ledger belongs, where a run goes on. One
    of several that can not be reached is left out, as ``Custodians`` says; ``left_out``: the file
    that remembers this.

    Raises InvalidInput for a URL together with ``isolate`` and without a key; LedgerMismatch where
    the teacher has another plan, kind of entropy or data set; Refused where a run that begins has a
    wrong key.
    """
    if side.teacher is not None and isolate:
        rule = "left out with a teacher's URL, which is a process of its own"
        raise InvalidInput("isolate", rule, True)
    if side.teacher is None and not isolate:
        with local_teacher(side, task, entropy, console, dataset) as teacher:
            yield teacher
        return
    if side.data.split:
        rule = "empty where the teacher is apart: the private rows need a file of their own"
        raise InvalidInput("data.split", rule, side.data.split)
    named = child(to_yaml(side), console.warn) if isolate else nullcontext(_keys(side.teacher))
    with named as keys, ExitStack() as stack:
        remotes, datasets, plan = dict[str, RemoteTeacher](), dict[str, str](), None
        gone: dict[str, str] = json.loads(left_out.read_text()) if left_out.exists() else {}
        for url, key in keys.items():
            how: dict[str, Any] = {"progress": console.progress, "say": console.say}
            remotes[url] = remote = RemoteTeacher(url, key, **how)
            stack.enter_context(closing(remote))
            if url in gone:
                continue
            try:
                budget = remote.budget(_budget)
            except Refused as error:
                lost = error.code in (*RETRIED, "no_service")
                if len(keys) == 1 or (dataset is None and not lost):
                    raise  # a wrong key, which can be corrected
                gone[url] = str(error)
                continue
            if (same := datasets.setdefault(budget["dataset"], url)) != url:
                rule = "services of different data sets, since sums would have these records twice"
                raise InvalidInput("teacher", rule, [same, url])
            plan = budget["plan"]
            known = dataset if len(remotes) == 1 else None
            _require_same(budget, side, known, entropy.unsafe, console)
        if len(remotes) == 1:
            yield remote
            return
        if plan is None:
            raise LabelwallError(f"every custodian is left out: {'; '.join(gone.values())}")
        count = len(remotes) - len(gone)
        console.say(f"{count} custodians: a sum has {count**0.5:.2f} times the noise of one's")
        yield Custodians(remotes, plan, task.labels.kind, console.say, gone, left_out)


def service_plan(side: PrivateSide) -> Plan:
    """The plan of the first service that answers. Raises Refused, InvalidInput without keys."""
    down = LabelwallError("no service answers.")
    for url, key in _keys(side.teacher).items():
        with closing(RemoteTeacher(url, key, say=Console().say)) as remote:
            try:
                return remote.budget(_budget)["plan"]  # type: ignore[no-any-return]
            except Refused as error:
                if error.code not in (*RETRIED, "no_service"):
                    raise
                down = error
    raise down


def _keys(teacher: str | list[str] | None) -> dict[str, str]:
    """API keys from the environment, by URL: separated by commas, in the order of the URLs."""
    urls = [teacher] if isinstance(teacher, str) else list(teacher or ())
    keys = [key.strip() for key in os.environ.get(KEY, "").split(",") if key.strip()]
    if len(keys) != len(urls) or not urls:
        rule = "an API key in the environment, from `labelwall keys add`; one for each teacher, "
        raise InvalidInput(KEY, f"{rule}separated by commas", f"{len(keys)} of {len(urls)}")
    if len(set(urls)) < len(urls):
        raise InvalidInput("teacher", "URLs that differ", urls)
    return dict(zip(urls, keys, strict=True))


def _budget(reply: Any) -> dict[str, Any]:
    """A service's budget, with its plan read. Raises one of MALFORMED, or InvalidInput."""
    if [type(reply[name]) for name in ("dataset", "adversary", "unsafe")] != [str, str, bool]:
        raise TypeError
    return {**reply, "plan": Plan.from_json(reply["plan"])}


def _require_same(
    budget: dict[str, Any], side: PrivateSide, dataset: str | None, unsafe: bool, console: Console
) -> None:
    """Raises LedgerMismatch for a service of another ``budget`` than the configuration says."""
    plan = budget["plan"]
    if side.plan_beside(plan) != plan or budget["unsafe"] != unsafe:
        raise LedgerMismatch(
            "the service has another budget, mechanism, caps or rounds than the configuration. "
            "Ask its custodian."
        )
    if dataset not in (None, budget["dataset"]):
        raise LedgerMismatch(
            "the run folder's ledger belongs to another data set than the service's. Choose "
            "another run_dir."
        )
    if plan.unit != "row":
        console.say(f"the certificate protects {protected(plan.unit)}")
    if budget["adversary"] != POOLED:
        console.say(f"the certificate holds against {budget['adversary']}")


@contextmanager
def local_teacher(
    side: PrivateSide,
    task: Task,
    entropy: Entropy,
    console: Console,
    dataset: str | None = None,
    adversaries: Sequence[str] = (POOLED,),
) -> Iterator[Teacher]:
    """A teacher in this process over the custodian's directory; it has opened no record yet.

    Raises as ``custody``.
    """
    opened = custody(side, entropy.unsafe, adversaries, console, dataset)
    with closing(opened) as custodian:
        yield teacher_factory(side, task, console.progress)(
            custodian.ledger,
            custodian.directory,
            task.num_classes,
            entropy,
            batch_size=side.batch_size,
            workers=side.workers,
            device=side.device,
            progress=console.progress,
        )


def custody(
    side: PrivateSide,
    unsafe: bool,
    adversaries: Sequence[str] = (POOLED,),
    console: Console | None = None,
    dataset: str | None = None,
) -> Custodian:
    """``open_custodian`` for the private side's settings, which name the directory.

    The console hears of other budgets of the same records, and of an anchor that was begun for a
    ledger in use: a mistyped name begins one, too. Private rows in memory that a kill left half
    written are deleted.
    """
    assert side.directory is not None
    console = console or Console()
    custodian = open_custodian(
        side.directory,
        data=identity(side.data),
        plan=side.plan(),
        recorded=side.plan_beside,
        unsafe=unsafe,
        anchor=side.anchor_place,
        ledger_url=side.ledger_url,
        known_dataset=dataset,
        adversaries=adversaries,
    )
    for part in (side.directory / ROWS).glob(f"*{PART}"):
        shutil.rmtree(part) if part.is_dir() else part.unlink()
    tell_budgets(side, console.warn)
    if begun := custodian.ledger.anchor_begun:
        console.say(
            f"there was no anchor of that name; one begins at entry {begun} of the ledger, "
            "which needs it from now on."
        )
    return custodian


def teacher_factory(
    side: PrivateSide, task: Task, progress: Progress = no_progress
) -> Callable[..., Teacher]:
    """``Teacher`` over a configuration's private rows, of which it has opened none yet."""
    if not side.scale.shards:
        reading = partial(progress, "reading private rows (percent)")
        return partial(Teacher, partial(open_records, side.data, task, reading, side.privacy.unit))
    from ...teacher.shards.shards import ShardedRows  # torch

    stream = partial(stream_records, side.data, task, unit=side.privacy.unit)
    rows = partial(ShardedRows, scale=side.scale, input_shape=task.input_shape)
    return partial(Teacher, stream, rows=rows)


@contextmanager
def child(configuration: str, warn: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """The API key, by its URL, of a service in a child process, which alone opens private files.

    ``configuration``: the YAML that it serves; ``warn`` hears what it says before. The child ends
    with this context. Raises LabelwallError where it does not start.
    """
    secret = secrets.token_hex(32)
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "teacher.yaml"
        settings.write_text(configuration)
        command = [sys.executable, "-P", "-m", PROGRAM, "serve", "--config", str(settings)]
        command += ["--service.port", "0", "--child"]
        errors, pipe = Path(folder) / "errors.txt", subprocess.PIPE
        with errors.open("w") as file:
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=file, text=True)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(secret + "\n")
            process.stdin.flush()
            url = process.stdout.readline().strip()
            lines = errors.read_text().splitlines()
            if not url:
                process.wait()
                lines = errors.read_text().splitlines() or ["the teacher's process did not start."]
                raise LabelwallError(lines[-1].strip().removeprefix("labelwall: "))
            for line in lines:
                warn(line)
            yield {url: token_of(CHILD, secret)}
        finally:
            process.stdin.close()  # the child stops once it has finished its current request
            process.wait()
