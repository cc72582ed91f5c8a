"""The teacher of a run: in this process, in a child process, or behind a URL; one interface."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from ...student.public_settings import ServedFeatures
from ...teacher.accounting.plan import Plan
from ...teacher.custody.private_settings import PrivateSide
from ...teacher.custody.recorded import plan_beside
from ...teacher.mechanisms.registry import from_slot
from ...wall.answering import Answering
from ...wall.client import RETRIED, RemoteTeacher
from ...wall.console import Console
from ...wall.datasets.data_config import Task
from ...wall.errors import InvalidInput, LabelwallError, LedgerMismatch, Refused
from ...wall.guarantee import POOLED, protected
from ...wall.questions import MatrixForm
from .custodians import Custodians

if TYPE_CHECKING:
    from ...teacher.noise.entropy import Entropy

# The environment variable with the API key. A key is no setting, so no file records it.
KEY = "LABELWALL_KEY"


@contextmanager
def teacher_of(
    side: PrivateSide,
    task: Task,
    entropy: "Entropy | None",
    console: Console,
    dataset: str | None = None,
    *,
    left_out: Path,
    isolate: bool = False,
) -> Iterator[Answering]:
    """The teacher that the private side's settings name.

    With a URL it is that service, with a list of them all of these. Otherwise it works on the
    custodian's directory: in this process, or, to ``isolate`` it, in a child process, which has no
    other settings. ``entropy``: of a teacher in this process; the one that a service apart must
    have, the system's where it is None. ``dataset``: to which the (first one's) ledger belongs,
    where a run goes on. One of several that can not be reached is left out, as ``Custodians`` says;
    ``left_out``: the file that remembers this.

    Raises InvalidInput for a URL together with ``isolate`` and without a key; LedgerMismatch where
    the teacher has another plan, kind of entropy or data set; Refused where a run that begins has a
    wrong key.
    """
    if side.teacher is not None and isolate:
        raise InvalidInput.needless("isolate", "the teacher's URL is a process of its own")
    apart = isolate or side.teacher is not None
    if apart and side.data.split:
        rule = "empty where the teacher is apart: the private rows need a file of their own"
        raise InvalidInput("data.split", rule, side.data.split)
    # The private side is loaded where it is to work: a process with a URL never has it
    with ExitStack() as stack:
        if not apart:
            from ...teacher.custody.opening import local_teacher

            assert entropy is not None
            local = local_teacher(side, task, entropy, console, dataset)
            yield stack.enter_context(local)
            return
        keys = {} if isolate else keys_of(side.teacher)
        if isolate:
            from ...teacher.custody.child import child

            keys = stack.enter_context(child(side, console.warn))
        unsafe = entropy is not None and entropy.unsafe
        remotes, datasets, plan = dict[str, RemoteTeacher](), dict[str, str](), None
        gone: dict[str, str] = json.loads(left_out.read_text()) if left_out.exists() else {}
        for url, key in keys.items():
            remote = RemoteTeacher(url, key, progress=console.progress, say=console.say)
            remotes[url] = stack.enter_context(closing(remote))
            if url in gone:
                continue
            try:
                budget = remote.budget(budget_of)
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
            _require_same(budget, side, known, unsafe, console)
        if len(remotes) == 1:
            yield remote
            return
        if plan is None:
            raise LabelwallError(f"every custodian is left out: {'; '.join(gone.values())}")
        count = len(remotes) - len(gone)
        times = f"{count**0.5:.2f} times the noise of a single custodian"
        console.say(f"{count} custodians: the sum has {times}")
        yield Custodians(remotes, plan, task.labels.kind, console.say, gone, left_out)


def keys_of(teacher: str | list[str] | None) -> dict[str, str]:
    """API keys from the environment, by URL: separated by commas, in the order of the URLs."""
    urls = [teacher] if isinstance(teacher, str) else list(teacher or ())
    keys = [key.strip() for key in os.environ.get(KEY, "").split(",") if key.strip()]
    if len(keys) != len(urls) or not urls:
        rule = "an API key in the environment, from `labelwall keys add`; one for each teacher, "
        raise InvalidInput(KEY, f"{rule}separated by commas", f"{len(keys)} of {len(urls)}")
    if len(set(urls)) < len(urls):
        raise InvalidInput("teacher", "URLs that differ", urls)
    return dict(zip(urls, keys, strict=True))


def budget_of(reply: Any) -> dict[str, Any]:
    """A service's budget, with its plan and features read, and whether it is ``untouched``.

    Raises one of MALFORMED, or InvalidInput.
    """
    names = ("name", "dataset", "adversary", "unsafe")
    if [type(reply[name]) for name in names] != [str, str, str, bool]:
        raise TypeError
    if type(reply["queries"]) not in (int, type(None)):
        raise TypeError
    features = TypeAdapter(ServedFeatures).validate_python(reply["features"])
    untouched = all(release["left"] == release["cap"] for release in reply["releases"])
    read = {"plan": Plan.from_json(reply["plan"]), "features": features, "untouched": untouched}
    return {**reply, **read}


def _require_same(
    budget: dict[str, Any], side: PrivateSide, dataset: str | None, unsafe: bool, console: Console
) -> None:
    """Raise LedgerMismatch for a service of another ``budget`` than the configuration says.

    Raises InvalidInput before the first charge for a key that may not ask all of a plan's noisy
    sums, since some of them give no model.
    """
    plan = budget["plan"]
    if plan_beside(side.schedule, plan) != plan or budget["unsafe"] != unsafe:
        raise LedgerMismatch(
            "the service has another budget, mechanism, caps or rounds than the configuration. "
            "Ask its custodian."
        )
    if dataset not in (None, budget["dataset"]):
        raise LedgerMismatch(
            "the run folder's ledger belongs to another data set than the service's. Choose "
            "another run_dir."
        )
    sums = sum(
        slot.releases[0].cap
        for slot in plan.up_to(1).slots
        if isinstance(from_slot(slot).query_form, MatrixForm)
    )
    if budget["untouched"] and budget["queries"] is not None and budget["queries"] < sums:
        rule = f"a key for at least {sums} queries, since each of the plan's {sums} sums is one"
        raise InvalidInput(KEY, rule, f"one of {budget['name']} for {budget['queries']}")
    if plan.unit != "row":
        console.say(f"the certificate protects {protected(plan.unit)}")
    if budget["adversary"] != POOLED:
        console.say(f"the certificate holds against {budget['adversary']}")
