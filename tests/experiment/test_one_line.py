"""What the machine refuses is one line and exit code 2, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from labelwall import pipeline


def test_a_directory_that_can_not_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "custodian"
    assert pipeline.main(["keys", "add", "--custodian_dir", str(place), "--name", "ann"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("labelwall: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--help"], ["keys", "--help"]])
def test_output_that_nobody_reads(arguments: list[str]) -> None:
    """The pipe is closed before anything is written to it."""
    program = (
        "import os, sys; from labelwall import pipeline; "
        "reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 1); "
        "sys.exit(pipeline.main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True)
    assert done.stderr == b""
    assert done.returncode in (0, 2)  # argparse is content
