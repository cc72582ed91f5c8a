"""The Dockerfile and compose.yaml: what their commands say is what labelwall takes."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from labelwall.experiment.commands.configured import options_of
from labelwall.experiment.config.options import parse
from labelwall.teacher.ledger.url import LedgerUrl
from tests.experiment import tiny

ROOT = Path(__file__).parents[1]
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]


def mounts(service: str) -> set[str]:
    """What a service sees: folders and volumes."""
    return {volume.split(":")[0] for volume in SERVICES[service]["volumes"]}


@pytest.mark.parametrize("service", ["teacher", "analyst"])
def test_a_command_is_one_of_labelwall(service: str, tmp_path: Path, monkeypatch) -> None:
    tiny.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    command, *words = SERVICES[service]["command"]
    words = [word.replace("/config/own.yaml", "config.yaml") for word in words]
    (tmp_path / "cert.pem").write_text("")
    config, options = parse(words, command, options=options_of(command))
    if service == "teacher":
        assert config.custodian_dir == "/custody"
        assert config.ledger is not None
        assert LedgerUrl.parse(config.ledger).socket == "/var/run/postgresql"
        assert options.service.host == "0.0.0.0"  # needs a certificate
        assert f"{options.service.port}:{options.service.port}" in SERVICES[service]["ports"]
    else:
        assert config.teacher == "https://teacher:8470"
        assert options.run_dir == "/runs/own"


def test_nothing_private_is_in_the_analysts_reach() -> None:
    private = {"./private", "custody", "ledgers", "socket"}
    assert private <= mounts("teacher") | mounts("database")
    assert not private & mounts("analyst")
    assert SERVICES["database"]["network_mode"] == "none"
    assert "LABELWALL_KEY" in SERVICES["analyst"]["environment"]


def test_the_image_installs_what_there_is() -> None:
    text = (ROOT / "Dockerfile").read_text()
    lines = re.sub(r" \\\n\s+", " ", text).splitlines()
    words = {line.split()[0] for line in lines if line and not line.startswith("#")}
    assert words == {"FROM", "COPY", "RUN", "USER", "ENV", "WORKDIR", "ENTRYPOINT", "CMD"}
    extras = re.findall(r"/src/labelwall\[(.*?)\]", text)[0].split(",")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras) <= set(project["optional-dependencies"])
    assert 'ENTRYPOINT ["labelwall"]' in lines
    assert "labelwall" in project["scripts"]
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"]
    assert all((ROOT / name).exists() for name in kept)  # of what lies here nothing else goes in
    assert {"pyproject.toml", "setup.py", "constraints.txt", project["readme"]} <= set(kept)
