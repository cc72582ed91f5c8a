"""The student that a command names: a run folder or a file, of this version or an earlier one."""

from __future__ import annotations

import json
from pathlib import Path

from ...student.model import StudentModel, assembled, load
from ...student.student_file import read_file, unpack
from ...wall.errors import InvalidInput, LabelwallError
from ..config.settings import load_config
from ..run.described_student import described_student, labels_of
from ..run.run_folder import RunFolder


def open_student(path: Path) -> StudentModel:
    """The student of a run folder, or of a file.

    A file of an earlier version has no metadata; its run folder supplies them. Raises MissingData
    where there is none, InvalidInput for a file that is no student.
    """
    content = read_file(path)
    if unpack(content, str(path)) is not None:
        return load(path)
    folder = path if path.is_dir() else path.parent
    if not (folder / "summary.json").is_file() or not (folder / "config.yaml").is_file():
        rule = "a student.safetensors with its metadata, or in its run folder"
        raise InvalidInput("student", rule, str(path))
    described = _described(RunFolder(folder))
    info = unpack(described)
    assert info is not None
    return assembled(info, described)


def _described(folder: RunFolder) -> bytes:
    """The student of an earlier version's run folder, with metadata."""
    config = load_config(folder.path / "config.yaml")
    try:
        summary = json.loads(folder.summary.read_text())
        labels = labels_of(config.data, folder.load_extractor(len(summary["rounds"])).num_classes)
        return described_student(folder, config.data, labels, summary, config.plan())
    except (ValueError, KeyError, TypeError, OSError) as error:
        kind = type(error).__name__
        raise LabelwallError(f"the run folder {folder.path} is damaged ({kind}).") from error
