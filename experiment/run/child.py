"""A teacher in a process of its own, for `run --isolate`: the run's process opens no private file."""

from __future__ import annotations

import secrets
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from labelwall import command
from labelwall.experiment.config.config import Config
from labelwall.experiment.config.settings import to_yaml
from labelwall.teacher.service.keys import token_of
from labelwall.wall.errors import LabelwallError

CHILD = "0" * 16  # public half of the one key that the child takes from its parent
PROGRAM = "labelwall.pipeline"


@contextmanager
def child(config: Config, directory: Path) -> Iterator[tuple[str, str]]:
    """(URL, API key) of a service of this run's own, in a process that alone opens private files. Ends it."""
    secret = secrets.token_hex(32)
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "teacher.yaml"
        settings.write_text(to_yaml(replace(config, custodian_dir=str(directory), teacher=None)))
        line = command(
            PROGRAM, "serve", "--config", str(settings), "--service.port", "0", "--child"
        )
        process = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        heard: deque[str] = deque(maxlen=20)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        listening = threading.Thread(
            target=lambda lines=process.stderr: heard.extend(lines), daemon=True
        )
        listening.start()
        try:
            process.stdin.write(secret + "\n")
            process.stdin.flush()
            url = process.stdout.readline().strip()
            if not url:
                process.wait()
                listening.join()
                raise LabelwallError(
                    heard[-1].strip().removeprefix("labelwall: ")
                    if heard
                    else "the teacher's process did not start."
                )
            yield url, token_of(CHILD, secret)
        finally:
            process.stdin.close()  # the child stops when it has finished what it is at
            process.wait()
