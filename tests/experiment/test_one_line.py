"""What the machine refuses is one line and exit code 2, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from labelwall import pipeline
from labelwall.experiment.commands import files


def test_a_directory_that_can_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    arguments = ["--custodian_dir", str(tmp_path / "file" / "custodian")]
    assert pipeline.main(["keys", "add", *arguments, "--name", "ann"]) == 2
    assert capsys.readouterr().err.count("\n") == 1

    def refused(_: object) -> int:
        raise PermissionError(13, "Permission denied", "some/file")

    monkeypatch.setattr(files, "keys", refused)
    assert pipeline.main(["keys", "list"]) == 2
    assert capsys.readouterr().err == "labelwall: some/file: Permission denied.\n"


@pytest.mark.parametrize("arguments", [["--help"], ["keys", "--help"]])
def test_output_that_nobody_reads(arguments: list[str]) -> None:
    """The pipe is closed before anything is written to it."""
    program = (
        "import os, sys; from labelwall import pipeline; "
        "reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 1); "
        "sys.exit(pipeline.main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, timeout=600
    )
    assert done.stderr == b""
    assert done.returncode in (0, 2)  # argparse is content
