"""The teacher in a child process, which alone opens private files, and the run that starts it.

`python -m labelwall.teacher.custody.child` is the child. Its standard input has the secret of its
only key, then the private side's settings as JSON; it ends when the input is closed.
"""

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from ...wall.errors import LabelwallError, reason_of
from ..noise.entropy import SystemEntropy
from ..private_files import log_failure
from ..service.keys import token_of
from ..service.service_config import ANY, ServiceConfig
from .private_settings import PrivateSide
from .serving import CHILD, serve

PREFIX = "labelwall: "  # of a line that ends the child and may be shown
NOT_STARTED = "the teacher's process did not start. The custodian's errors.log may say why."


@contextmanager
def child(side: PrivateSide, warn: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """The API key, by its URL, of a service in a child process.

    ``warn`` hears what it says before. The child ends with this context. Raises LabelwallError
    where it does not start.
    """
    secret = secrets.token_hex(32)
    with tempfile.TemporaryDirectory() as folder:
        errors, pipe = Path(folder) / "errors.txt", subprocess.PIPE
        # A warning's text may quote a private row
        command = [sys.executable, "-P", "-W", "ignore", "-m", __name__]
        with errors.open("w") as file:
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=file, text=True)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{secret}\n{json.dumps(asdict(side))}\n")
            process.stdin.flush()
            url = process.stdout.readline().strip()
            if not url:
                process.wait()
                lines = errors.read_text().splitlines()
                why = lines[-1].strip() if lines else ""
                known = why.startswith(PREFIX)
                raise LabelwallError(why.removeprefix(PREFIX) if known else NOT_STARTED)
            for line in errors.read_text().splitlines():
                warn(line)
            yield {url: token_of(CHILD, secret)}
        finally:
            process.stdin.close()  # the child stops once it has finished its current request
            process.wait()


def main() -> None:
    os.umask(0o077)  # what it writes is its owner's alone
    # The run shows what is written here. Decoders write what is wrong with a private file.
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    secret = sys.stdin.readline().strip()
    side = TypeAdapter(PrivateSide).validate_json(sys.stdin.readline())
    try:
        # Its only caller is the run that started it, which names its own networks
        config = ServiceConfig(port=0, backbones=[ANY])
        serve(side, config, entropy=SystemEntropy(), child_of=secret)
    except LabelwallError as error:
        sys.exit(f"{PREFIX}{error}")
    except OSError as error:
        sys.exit(f"{PREFIX}{reason_of(error)}")
    except Exception:  # its text may tell of private rows, or how many there are
        log_failure(Path(side.custodian_dir or ""))
        sys.exit(f"{PREFIX}{NOT_STARTED}")


if __name__ == "__main__":
    main()
