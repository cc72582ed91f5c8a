"""What a user gets wrong, or the machine refuses, is one clear line."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from labelwall.experiment.config.options import parse
from labelwall.teacher.custody.groups import RoundConfig
from tests.experiment import tiny
from tests.experiment.checks import RUN, check_one_error
from tests.experiment.test_kinds import VALUES, write
from tests.ledgers import parsed

# (kind, setting, what it is now, what the line names)
MISTAKES = [
    ("votes on attributes", "mechanism", "{kind: gnmax}", "mechanism.kind"),
    ("votes on attributes", "data", "{source: arrays, path: data.npz}", "mechanism.kind"),
    ("votes on attributes", "student", "{class_prior: uniform}", "student.class_prior"),
    ("means, then medians", "data", VALUES.replace("bounds: [-10, 30], ", ""), "data.bounds"),
    ("means, then medians", "data", VALUES.replace("[-10, 30]", "[30, -10]"), "data.bounds"),
    ("means, then medians", "mechanism", "{kind: private_knn_mean, sigma_mean: 0}", "sigma_mean"),
    ("batches", "box", "[]", "`box`"),
    ("batches", "features", "raw", "`box`"),
    ("batches", "box", "[[1, 1]]", "low < high"),
    ("batches", "box", "[[0, 1], [0, 1]]", "one side, or 8"),
    ("batches", "budget", "{epsilon: 40.0}", "budget.epsilon"),
    ("batches", "mechanism", "{kind: radius, accounting: cheap}", "accounting"),
    ("histograms", "mechanism", "{kind: reverse_knn, centroids: 41, sigma: 0.5}", "at most 40"),
    ("histograms", "mechanism", "{kind: reverse_knn, margin: .nan}", "mechanism.margin"),
    ("histograms", "mechanism", "{kind: private_knn}", "rounds.queries"),
    ("histograms", "rounds", "[{queries: 0}]", "rounds.queries"),
    ("votes on whitened features", "whiten", "-1", "whiten"),
    ("votes on whitened features", "whiten", "9", "whiten"),
]


@pytest.mark.parametrize(("name", "setting", "text", "mentioned"), MISTAKES)
def test_a_mistake_is_one_clear_line(name, setting, text, mentioned, capsys) -> None:
    write(name, **{setting: text})
    check_one_error(RUN, mentioned, capsys)


# command -> options that it needs
COMMANDS = {
    "plan": [],
    "run": ["--run_dir", "out", "--quiet"],
    "predict": ["--queries", "q.npz", "--out", "a.npz", "--custodian_dir", "custody", "--quiet"],
    "serve": ["--custodian_dir", "custody"],
}
NETWORKS = ["--mechanism.kind", "gnmax", "--mechanism.teachers", "5"]
NETWORKS += ["--mechanism.classifier", "cnn", "--scale.shards", "2"]
EACH = ["--service.budget", "per_analyst", "--scale.shards", "2"]
OPTIONS = [
    ("run", ["--bugdet.epsilon", "3"], "Did you mean `budget`?"),
    ("run", ["--balnaced"], "`--balnaced` must have a value. Did you mean '--balanced'?"),
    ("predict", ["--queries", "config.yaml"], "`queries` must be an npz file"),
    ("predict", ["--out", "nowhere/a.npz"], "`out` must be a file in an existing folder"),
    ("run", ["--student.backbone", "small_cnn"], "backbone"),
    ("run", ["--features", "hog"], "hog"),
    ("run", ["--features", "timm/test_efficientnet"], "timm/NAME for images"),
    ("run", ["--weights", "x"], "Leave out `weights`: only `features: timm/NAME` reads them."),
    ("run", NETWORKS, "scale.shards"),
    ("serve", ["--port", "8470"], "Did you mean `service.port`?"),
    ("serve", EACH, "`scale.shards` must be 0 with service.budget"),
    ("predict", ["--queries", "none.npz"], "none.npz"),
    ("predict", ["--queries", "data.npz"], "array x"),
    ("predict", [], "`x` must be"),
    ("predict", ["--custodian_dir", "null"], "custodian_dir"),
    ("plan", ["--privacy.unit", "household"], "privacy.unit"),
    (
        "plan",
        ["--privacy.unit", "person", "--data.source", "mnist5k"],
        "`privacy.unit` must be row for the source 'mnist5k'",
    ),
]


@pytest.mark.parametrize(("command", "options", "mentioned"), OPTIONS)
def test_a_wrong_option_is_one_clear_line_and_charges_nothing(
    command, options, mentioned, capsys
) -> None:
    tiny.write()
    np.savez("q.npz", x=np.zeros((2, 99), np.float32))
    line = [command, "--config", "config.yaml", *COMMANDS[command], *options]
    check_one_error(line, mentioned, capsys)
    assert not Path("a.npz").exists()
    for ledger in Path().rglob("ledger.sqlite"):
        assert {kind for kind, _ in parsed(ledger)} <= {"genesis", "extractor"}
    assert command != "serve" or not Path("custody").exists()


def test_a_count_of_rounds_in_a_file() -> None:
    Path("own.yaml").write_text("rounds: 2\n")
    options = ["--data.source", "mnist5k", "--mechanism.kind", "private_linear"]
    config, _ = parse(["--config", "own.yaml", *options])
    assert config.rounds == [RoundConfig(), RoundConfig()]


def test_without_rows_the_line_asks_for_rows(capsys) -> None:
    check_one_error(
        ["run", "--student.steps", "40"],
        "Give `private`: there is no --data FILE with all rows.",
        capsys,
    )


def test_a_name_that_is_misspelt_is_told_before_what_is_missing(capsys) -> None:
    Path("own.yaml").write_text("data: {source: arrays, path: data.npz}\nround: [{}]\n")
    check_one_error(["plan", "--config", "own.yaml"], "Did you mean `rounds`?", capsys)


def test_a_place_that_can_not_be_written(capsys) -> None:
    tiny.write()
    Path("file").write_text("")
    keys = ["keys", "add", "--name", "ann", "--custodian_dir", "file/below"]
    check_one_error(keys, "custodian", capsys)
    init = ["init", "--data", "data.npz", "--out", "file/below.yaml"]
    check_one_error(init, "`out` must be a file that can be written", capsys)


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
