"""The custodian's page: access, agreement with the ledger, and a real browser without scripts."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from selenium.webdriver.common.by import By

from labelwall.teacher.accounting.accountant import odometer
from labelwall.teacher.accounting.conversion import round_up
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.wall.messages import Queries
from tests import browser
from tests.teacher.service import tiny
from tests.teacher.service.tiny import SPEC, clients, rows, served

OTHER = replace(SPEC, scale=2.0)
SITE = {"sec-fetch-site": "same-origin"}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tiny.Made]:
    """A service after two rounds of two callers."""
    made = tiny.make(tmp_path_factory.mktemp("page"), asked=90, answered=30, quota=500)
    with clients(made, "ann", "bob", "carol") as (ann, bob, carol):
        ann.answer(Queries(rows(20, 1)))
        bob.answer(Queries(rows(10, 2)))
        ann.use_extractor(OTHER)
        ann.answer(Queries(rows(80, 3)))  # 20 of them, and more, past a cap
        carol.add(rows(3, 50), np.array([0, 1, 2]), np.array([500, 501, 502]))
        carol.remove(np.array([3, 500]))
        yield made


def test_the_page_is_for_a_custodian_in_a_browser(shown: tiny.Made) -> None:
    bearer = f"Bearer {shown.tokens['carol']}"
    for method, path in (("GET", "/"), ("POST", "/export"), ("POST", "/audit")):
        wrong = [shown.browse(path, method, name, **SITE) for name in ("ann", "x")]
        for more in ({}, {"authorization": "Basic ?"}, {"authorization": bearer}):
            headers = {**SITE, **more}
            wrong.append(
                httpx.request(
                    method, shown.url + path, headers=headers, trust_env=False, timeout=60
                )
            )
        for reply in wrong:
            assert reply.status_code == 401
            assert reply.headers["www-authenticate"].startswith("Basic ")
            assert reply.json()["code"] == "sign_in"
        assert shown.browse(path, method, **SITE).status_code == 200
        assert shown.browse(path, "DELETE", **SITE).status_code == 405


def test_what_a_browser_adds_by_itself_opens_no_other_route(shown: tiny.Made) -> None:
    """The API must not accept Basic authentication.

    A browser sends it to every address of the service, whichever page makes the request.
    """
    for path, entry in shown.app.openapi()["paths"].items():
        for method in set(entry) if path != "/v1/health" else ():
            reply = shown.browse(re.sub("{.*}", "0" * 64, path), method.upper())
            assert reply.status_code == 401


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none", "", "SAME-ORIGIN, cross-site"])
def test_a_button_works_from_the_page_alone(shown: tiny.Made, site: str) -> None:
    for path in ("/export", "/audit"):
        reply = shown.browse(path, "POST", **({"sec-fetch-site": site} if site else {}))
        assert (reply.status_code, reply.json()["code"]) == (403, "another_site")


def test_nothing_runs_and_nothing_is_fetched(shown: tiny.Made) -> None:
    for reply in (shown.browse(), shown.browse("/audit", "POST", **SITE)):
        policy = dict(
            part.split(" ", 1) for part in reply.headers["content-security-policy"].split("; ")
        )
        assert policy.pop("style-src").startswith("'sha256-")
        assert policy == {
            "default-src": "'none'",
            "form-action": "'self'",
            "base-uri": "'none'",
            "frame-ancestors": "'none'",
        }
        assert reply.headers["cache-control"] == "no-store"
        assert not re.findall(
            r"<script|<link|<iframe|<img|\bsrc=|\bon\w+=|\bstyle=|https?:|url\(", reply.text
        )


def test_the_figures_are_those_of_the_ledger_and_of_callers_receipts(
    shown: tiny.Made,
) -> None:
    service, text = shown.service, tiny.text_of(shown.browse())
    assert "screen slot 0 90 of 90, 0 left" in text
    charged = audit(service.directory / "ledger.sqlite").charged
    assert f"aggregate slot 0 {charged['0/aggregate']} of 30" in text
    reading = odometer(service.plan, tuple(charged.values()))
    assert f"{round_up(min(reading, 1.0))} spent so far" in text
    assert "added 2 ids removed 2 PRIVATE" in text
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d UTC"
    assert re.search(
        f"ann analyst 80 500 {when} no end bob analyst 10 – {when} no end carol custodian 0 – –",
        text,
    )
    assert re.search(f"{when} removed 2 {when} added 3", text)
    assert "last failure (errors.log) never" in text


def test_pages_that_are_made_at_once_are_the_same(shown: tiny.Made) -> None:
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: shown.browse(), range(12)))
    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.text for reply in replies}) == 1


def test_names_are_text_and_a_revoked_key_ends_at_once(tmp_path: Path) -> None:
    made = tiny.make(tmp_path)
    with served(made):
        keys = made.app.state.authenticator.keys
        keeper = keys.add("dan", "custodian")
        # keys have no such names; a table could
        made.service.queue.usage.charged["<script>alert(1)</script>"] = 1
        text = made.browse(name=keeper).text
        assert "<script" not in text
        assert "&lt;script&gt;" in text
        keys.revoke("dan")
        assert made.browse(name=keeper).status_code == 401


def test_an_unsafe_ledger_says_so(tmp_path: Path) -> None:
    made = tiny.make(tmp_path, entropy=Tape())
    made.service.certified = None
    with served(made):
        text = made.browse().text
    assert "UNSAFE" in text
    assert "<b>none</b>" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("budget", "screen slot 0"),
        ("ledger", "newest entry"),
        ("callers", "ann analyst"),
        ("records", "ids removed"),
    ],
)
def test_a_section_in_a_browser(shown: tiny.Made, tmp_path: Path, section: str, said: str) -> None:
    address = shown.url.replace("http://", f"http://carol:{shown.tokens['carol']}@")
    with browser.browser(tmp_path) as opened:
        browser.resize(opened, 1280, 900, False)
        opened.get(address)
        assert said in " ".join(opened.find_element(By.ID, section).text.split())
        assert opened.get_log("browser") == []


class Tape(SystemEntropy):
    unsafe = True


@pytest.mark.slow
def test_in_a_browser_on_a_desk_and_on_a_phone(shown: tiny.Made, tmp_path: Path) -> None:
    """Without scripts the page fits the width, both buttons work, and the browser logs nothing."""
    address = shown.url.replace("http://", f"http://carol:{shown.tokens['carol']}@")
    with browser.browser(tmp_path) as opened:
        for name, width, height, phone in (("desk", 1280, 900, False), ("phone", 390, 844, True)):
            browser.resize(opened, width, height, phone)
            opened.get(address)
            assert opened.title == "labelwall: the custodian's page"
            assert browser.content_size(opened)[0] <= width
            browser.screenshot(opened, tmp_path / f"{name}.png")
            with Image.open(tmp_path / f"{name}.png") as picture:
                colours = picture.convert("RGB").getcolors(1 << 20)
                assert colours is not None
                assert {(31, 111, 235), (255, 255, 255)} <= {
                    colour for _, colour in colours
                }  # styled: bars and cards
        opened.find_element(By.ID, "audit").click()
        assert opened.find_element(By.ID, "finding").text.startswith("Audit: consistent")
        opened.find_element(By.ID, "export").click()
        copy, patience = tmp_path / "ledger.sqlite", time.monotonic() + 60
        while not copy.exists() and time.monotonic() < patience:
            time.sleep(0.05)
        assert audit(copy).consistent
        assert opened.get_log("browser") == []
