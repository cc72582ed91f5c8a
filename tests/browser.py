"""Headless chromium without scripts, for tests of pages.

Tests are skipped where Debian's chromium is not installed.
"""

from __future__ import annotations

import base64
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

MISSING = "no browser is installed (Debian packages chromium and chromium-driver)"
FLAGS = (
    "headless",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "disable-dev-shm-usage",
    "blink-settings=scriptEnabled=false",
)


@contextmanager
def browser(downloads: Path) -> Iterator[Chrome]:
    """A browser with a new profile, which saves downloads in ``downloads``."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip(MISSING)
    with tempfile.TemporaryDirectory(prefix="lw") as profile:
        options = ChromeOptions()
        options.binary_location = program
        for flag in (*FLAGS, f"user-data-dir={profile}"):
            options.add_argument(f"--{flag}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        opened = Chrome(options, Service(driver))
        try:
            opened.implicitly_wait(60)  # seconds for a page to load on a busy machine
            opened.execute_cdp_cmd(
                "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads)}
            )
            yield opened
        finally:
            opened.quit()


def resize(opened: Chrome, width: int, height: int, phone: bool) -> None:
    """Emulate a screen of ``width`` x ``height`` CSS pixels."""
    size = {
        "width": width,
        "height": height,
        "deviceScaleFactor": 2 if phone else 1,
        "mobile": phone,
    }
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def content_size(opened: Chrome) -> tuple[int, int]:
    """(width, height) of a page's content in CSS pixels."""
    size = opened.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
    return size["width"], size["height"]


def screenshot(opened: Chrome, path: Path) -> None:
    """Save the whole page, including the part below the screen, as PNG."""
    shot = opened.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
    path.write_bytes(base64.b64decode(shot["data"]))
