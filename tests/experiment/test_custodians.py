"""A run with three custodians over HTTP, each in a process of its own; one is killed at work."""

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import labelwall as lw
from labelwall.experiment.run.custodians import Custodians
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.experiment.run.teachers import KEY
from labelwall.experiment.whole_run import run
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.wall.client import RemoteTeacher
from labelwall.wall.console import Console
from labelwall.wall.errors import InvalidInput, Refused
from labelwall.wall.matrices import Matrix, NoisyCounts
from tests.experiment import tiny
from tests.experiment.shard_services import PROGRAM, in_a_thread, placed_config, token
from tests.experiment.test_cluster import free_ports
from tests.programs import environment
from tests.seeded_noise import SeededNoise

SUMS = {"kind": "private_linear", "steps": 2, "noise_multiplier": 0.5}
OTHERS = {
    "mechanism": SUMS,
    "rounds": [{}, {}],
    "caps": None,
    "evaluate": {"share": 0.1, "sigma": 2.0},
}


def private(folder: Path, number: int) -> None:
    """60 private rows of its own in the folder's data.npz."""
    with np.load(folder / "data.npz") as stored:
        arrays = dict(stored)
    x, y = tiny.rows(60, 50 + number)
    arrays |= {"private_x": x, "private_y": y, "private_id": np.arange(60)}
    np.savez(folder / "data.npz", **arrays)


def start(folder: Path, port: int) -> subprocess.Popen[str]:
    command = [sys.executable, PROGRAM, "config.yaml", str(port), "--custodian_dir", "store"]
    process = subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


@pytest.mark.slow
def test_three_custodians_add_up_and_a_killed_one_goes_on(tmp_path, monkeypatch):
    """Nothing is asked twice, by a killed service or by the same run again."""
    folders, keys, ports = [], [], free_ports(3)
    for number in range(3):
        folders.append(tmp_path / f"custodian_{number}")
        tiny.write(folders[-1], **OTHERS)
        private(folders[-1], number)
        keys.append(token(folders[-1] / "store"))
    monkeypatch.setenv(KEY, ",".join(keys))
    services = [start(folder, port) for folder, port in zip(folders, ports, strict=True)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    config, ask, calls = placed_config(folders[0]), Custodians.count, list[int]()

    def again() -> None:
        services[1] = start(folders[1], ports[1])

    def count(several: Custodians, matrix: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            services[1].kill()
            services[1].wait()
            threading.Timer(0.5, again).start()
        return ask(several, matrix)

    monkeypatch.setattr(Custodians, "count", count)
    try:
        place = tmp_path / "run"
        how = {"console": Console(quiet=True), "entropy": SeededNoise(1)}
        for _ in range(2):
            run(replace(config, teacher=urls), place, **how)
            summary = json.loads((place / "summary.json").read_text())
            names = ("ledger_1.sqlite", "ledger_2.sqlite", "ledger_3.sqlite")
            known = [audit(place / name) for name in names]
            assert all("test tape" in problem for f in known for problem in f.problems)
            assert [finding.charged for finding in known] == [{"0/sum": 4, "1/score": 1}] * 3
    finally:
        for service in services:
            service.kill()
            service.wait()
    assert len(calls) >= 5
    assert len({entry["dataset"] for entry in summary["custodians"]}) == 3
    assert [entry["left_out"] for entry in summary["custodians"]] == [None] * 3
    assert summary["test_accuracy"] > 0.5
    assert summary["private_score"]["right"] is None or summary["private_score"]["right"] > 0.4


@contextmanager
def services(
    tmp_path: Path, count: int, settings: dict[str, Any] = OTHERS
) -> Iterator[tuple[list[str], list[str]]]:
    """URLs and keys of services in threads, each over its own 60 rows."""
    with ExitStack() as stack:
        urls, keys = [], []
        for number in range(count):
            folder, store = tmp_path / f"custodian_{number}", tmp_path / f"store_{number}"
            tiny.write(folder, **settings)
            private(folder, number)
            keys.append(token(store))
            running = in_a_thread(placed_config(folder), store, SystemEntropy())
            urls.append(stack.enter_context(running))
        yield urls, keys


def fit(epsilon: float, urls: list[str], **more: Any) -> lw.Model:
    """A student of the rows that all custodians see, by their services."""
    data = lw.Data(None, tiny.rows(40, 2)[0], tiny.rows(30, 3))
    student = {"steps": 20, "doubtful_folds": 0}
    return lw.fit(data, epsilon, run_dir="run", teachers=urls, student=student, quiet=True, **more)


def test_fit_asks_custodians_and_a_run_that_lost_one_goes_on_without_it(tmp_path, monkeypatch):
    """It is asked no more, also where it is back; the others are charged once."""
    with services(tmp_path, 2) as (urls, keys):
        monkeypatch.setenv(KEY, ",".join(keys))
        count, calls = RemoteTeacher.count, Counter[str]()

        def failing(remote: RemoteTeacher, matrix: Matrix) -> NoisyCounts:
            url = str(remote._http.base_url)[:-4]
            calls[url] += 1
            if url == urls[1] and calls[url] == 2:
                raise Refused("unreachable", "down")
            if sum(calls.values()) == 6:
                raise KeyboardInterrupt
            return count(remote, matrix)

        monkeypatch.setattr(RemoteTeacher, "count", failing)
        with pytest.raises(KeyboardInterrupt):
            fit(1000.0, urls)
        model = fit(1000.0, urls)
    assert calls[urls[1]] == 2
    first, second = model.summary.custodians
    assert (first.left_out, second.left_out) == (None, "down")
    names = ("ledger_1.sqlite", "ledger_2.sqlite")
    charged = [audit(tmp_path / "run" / name).charged.get("0/sum", 0) for name in names]
    assert charged == [4, 0]  # the second copy is of the start
    assert not list((tmp_path / "run").rglob("private*"))
    card = (tmp_path / "run" / "MODEL_CARD.md").read_text()
    assert f"audit ledger_2.sqlite --expect_head {second.ledger_head}" in card
    assert audit(tmp_path / "run" / "ledger_2.sqlite").head == second.ledger_head


def mangled(reply: httpx.Response, kind: str) -> httpx.Response:
    content = {"page": b"<html>", "empty": b"{}", "deep": b"[" * 20_000}.get(kind)
    if content is None:
        changed = reply.json()
        changed.get("result", {}).get("receipt", {})["charged"] = {"more": 1}
        content = json.dumps(changed).encode()
    return httpx.Response(reply.status_code, content=content)


@pytest.mark.parametrize("kind", ["page", "empty", "deep", "receipt"])
def test_one_that_says_what_is_no_reply_is_left_out(tmp_path, monkeypatch, kind):
    with services(tmp_path, 2) as (urls, keys):
        monkeypatch.setenv(KEY, ",".join(keys))
        request, counted = httpx.Client.request, list[int]()

        def other(http: httpx.Client, method: str, path: str, **how: Any) -> httpx.Response:
            reply = request(http, method, path, **how)
            if str(http.base_url).startswith(urls[1]) and path == "weights":
                counted.append(reply.status_code)
                reply = mangled(reply, kind)
            return reply

        monkeypatch.setattr(httpx.Client, "request", other)
        model = fit(1000.0, urls)
    assert len(counted) == 1
    first, second = model.summary.custodians
    assert first.left_out is None
    assert ("another form" if kind == "receipt" else urls[1]) in second.left_out


def test_two_services_of_one_data_set_are_refused_before_anything_is_asked(tmp_path, monkeypatch):
    with services(tmp_path, 1) as ([url], [key]):
        monkeypatch.setenv(KEY, f"{key},{key}")
        with pytest.raises(InvalidInput, match="different data sets") as error:
            fit(1000.0, [url, f"{url}/"])
    assert url in str(error.value)
    [store] = tmp_path.glob("store_*")
    assert audit(store / "ledger.sqlite").charged.get("0/sum", 0) == 0


SCREENED = {"kind": "private_knn", "k": 9, "sample_rate": 1.0, "threshold": 1}
PARTS = {"epsilon": 1000.0, "delta": 1e-6, "periods": 3, "reserve": 0.3}


@pytest.mark.parametrize(
    "settings",
    [
        {"rounds": [{}], "evaluate": {"share": 0.2, "choose": True}, "budget": PARTS},
        {"mechanism": SCREENED, "caps": {"asked": 31, "answered": 20}, "rounds": [{"queries": 31}]},
        {"mechanism": {"kind": "ind_knn", "rho": 1.0}, "rounds": [{"queries": 9}]},
    ],
    ids=["sums", "votes", "budgets"],
)
def test_fit_asks_by_the_plan_of_the_services(tmp_path, monkeypatch, settings):
    how = {"rounds": settings["rounds"]} if "ind_knn" in str(settings) else {}
    with services(tmp_path, 1, {**OTHERS, "evaluate": {}, **settings}) as (urls, keys):
        monkeypatch.setenv(KEY, keys[0])
        with pytest.raises(InvalidInput, match=r"budget\.epsilon` must be at least"):
            fit(0.1, urls, **how)
        first = fit(5000.0, urls, **how)
        plan = RunFolder(tmp_path / "run").plan
        assert first.epsilon_ <= plan.epsilon < 5000.0
        assert first.delta_ == plan.delta
        charged = audit(first.path / "ledger.sqlite").charged
        if "budget" in settings:
            first.update(quiet=True)
            assert audit(first.path / "ledger.sqlite").charged != charged
        again = fit(5000.0, urls, **how)  # is finished
        assert len(again.summary.rounds) == 1 + ("budget" in settings)


@pytest.mark.parametrize("call", ["budget", "export"])
def test_a_run_begins_without_the_first_custodian_where_it_is_down(tmp_path, monkeypatch, call):
    """The report is of the other's ledger; a key that is wrong is corrected first."""
    with services(tmp_path, 2) as (urls, keys):
        monkeypatch.setenv(KEY, f"{keys[1]},{keys[1]}")
        with pytest.raises(Refused):
            fit(1000.0, urls)
        monkeypatch.setenv(KEY, ",".join(keys))
        real = getattr(RemoteTeacher, call)

        def failing(remote: RemoteTeacher, *arguments: object) -> object:
            if str(remote._http.base_url)[:-4] == urls[0]:
                raise Refused("unreachable", "down")
            return real(remote, *arguments)

        monkeypatch.setattr(RemoteTeacher, call, failing)
        for _ in range(2):  # a finished run is the same
            model = fit(1000.0, urls)
    first, second = model.summary.custodians
    assert (first.left_out, first.ledger_head) == ("down", None)
    assert second.left_out is None
    assert model.summary.ledger_head == second.ledger_head
    copies = [audit(tmp_path / "run" / name) for name in ("ledger.sqlite", "ledger_2.sqlite")]
    assert copies[0].charged == copies[1].charged
    assert copies[0].charged["1/score"] == 1
    for page in ("MODEL_CARD.md", "report.html"):
        text = (tmp_path / "run" / page).read_text()
        assert "as it was last seen before" in text
        assert "None" not in text
