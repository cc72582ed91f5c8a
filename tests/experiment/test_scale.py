"""Whole runs over shards: the same releases, ledger and student as over rows in one piece."""

from dataclasses import replace
from pathlib import Path

import httpx

from labelwall.experiment.config.options import parse
from labelwall.experiment.run.console import Console
from labelwall.experiment.run.serving import app_of
from labelwall.experiment.run.teachers import custody
from labelwall.teacher.service.config import ServiceConfig
from labelwall.teacher.service.keys import Keys
from tests.experiment import tiny
from tests.seeded_noise import SeededNoise
from tests.teacher.service.tiny import Made, served


def test_a_service_says_where_the_rows_are_and_how_far_they_are_read(
    tmp_path: Path, monkeypatch
) -> None:
    """On the page, in public figures; progress in percent, on the custodian's terminal alone."""
    tiny.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    args, heard, store = ["--config", "config.yaml", "--scale.shards", "3"], [], tmp_path / "store"
    side = replace(parse(args, "serve")[0].private_side(), custodian_dir=str(store))
    monkeypatch.setattr(Console, "progress", lambda self, *now: heard.append(now))
    opened, keys = custody(side, unsafe=True), Keys(store)
    app = app_of(side, ServiceConfig(port=0), opened, keys, SeededNoise(1))
    assert heard == [("taking in private rows (percent)", 100, 100)]
    token = keys.add("carol", "custodian")
    with served(Made(app, opened, {})) as url:
        page = httpx.get(url, auth=("", token), trust_env=False, timeout=60)
        assert "in 3 shards, backend local" in page.text
    assert len(heard) == 1
