r"""One run with several custodians: services over HTTP, each over a part of the private rows.

    python benchmarks/accuracy/custodians.py --scratch FOLDER --out FILE --counts 1 3 10

The rows are those of shift.py: 6,000 private docstrings, or `--rows` as there, 800 public, 800 test
rows, divided into equal parts by chance, or (`--uneven`) so that one half of each part is of one
class. Columns: the student's share of right test rows with all custodians, and with the first one
alone, at the same epsilon for each. A line of JSON is appended for each row.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import yaml

from labelwall.benchmarks.accuracy.shift import Split, texts, vectors
from labelwall.benchmarks.shared.record import add_record, percent, record
from labelwall.teacher.service.keys import Keys

COMMAND = (sys.executable, "-m", "labelwall.pipeline")
SETTINGS = {
    "mechanism": {"kind": "private_linear", "steps": 20, "axes": 48},
    "rounds": [{}],
    "student": {"backbone": "mlp", "objective": "supervised", "augment": "none", "steps": 1200},
    "threads": 1,
    "workers": 1,
}


def parts(split: Split, count: int, uneven: bool, rng: np.random.Generator) -> list[np.ndarray]:
    """Places of the private rows of each custodian."""
    order = rng.permutation(len(split["private_y"]))
    if uneven:  # half of the rows lie by class
        labels = split["private_y"][order]
        by_class = np.argsort(np.where(rng.random(len(order)) < 0.5, labels, -1), kind="stable")
        mixed = by_class[: len(order) // 2], by_class[len(order) // 2 :]
        halves = [np.array_split(order[half], count) for half in mixed]
        return [np.concatenate(pair) for pair in zip(*halves, strict=True)]
    return np.array_split(order, count)


def served(folder: Path, stack: ExitStack) -> tuple[str, str]:
    """(URL, key) of a service over a folder's config.yaml."""
    (folder / "custody").mkdir(mode=0o700)
    key = Keys(folder / "custody").add("analyst", "analyst")
    command = [*COMMAND, "serve", "--config", "config.yaml", "--custodian_dir", "custody"]
    errors = stack.enter_context((folder / "errors.txt").open("w"))
    process = subprocess.Popen(
        [*command, "--service.port", "0"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    assert process.stdout is not None
    url = process.stdout.readline().split()[-1]
    return url, key


def student(folders: list[Path], place: Path) -> float:
    """The accuracy of one run that all custodians answer."""
    with ExitStack() as stack:
        urls, keys = zip(*(served(folder, stack) for folder in folders), strict=True)
        command = [*COMMAND, "run", "--config", str(folders[0] / "config.yaml"), "--quiet"]
        command += ["--teacher", f"[{', '.join(urls)}]", "--run_dir", str(place)]
        keyed = {**os.environ, "LABELWALL_KEY": ",".join(keys)}
        subprocess.run(command, check=True, env=keyed, stdout=subprocess.DEVNULL)
    return float(json.loads((place / "summary.json").read_text())["test_accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scratch", type=Path, required=True, help="folder for runs")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one a row")
    parser.add_argument("--rows", type=Path, help="npz with x and y; docstrings by default")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 3, 10])
    parser.add_argument("--epsilon", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--uneven", action="store_true", help="classes have uneven shares")
    add_record(parser)
    options, measured = parser.parse_args(), []
    options.scratch.mkdir(parents=True, exist_ok=True)
    if options.rows is None:
        rows = texts()
    else:
        with np.load(options.rows) as stored:
            rows = stored["x"], stored["y"]
    split, rng = vectors(rows, "alike", options.seed), np.random.default_rng(options.seed)
    for count in options.counts:
        with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
            folders = []
            for number, places in enumerate(parts(split, count, options.uneven, rng)):
                folders.append(Path(scratch) / f"custodian_{number}")
                folders[-1].mkdir()
                own = {name: split[name][places] for name in ("private_x", "private_y")}
                np.savez(folders[-1] / "rows.npz", **{**split, **own})  # type: ignore[arg-type]
                data = {"source": "arrays", "path": str(folders[-1] / "rows.npz")}
                settings = {**SETTINGS, "data": data, "budget": {"epsilon": options.epsilon}}
                (folders[-1] / "config.yaml").write_text(yaml.safe_dump(settings))
            together = student(folders, Path(scratch) / "all")
            alone = together
            if count > 1:
                (folders[0] / "custody").rename(folders[0] / "spent")
                alone = student(folders[:1], Path(scratch) / "one")
        row = {"custodians": count, "epsilon": options.epsilon, "uneven": options.uneven}
        row |= {"seed": options.seed, "together": together, "alone": alone}
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
        kind = options.rows.stem if options.rows else "docstrings"
        about = [kind, "uneven" if options.uneven else "equal", count]
        measured.append([*about, percent([together]), percent([alone]) if count > 1 else None])
    if options.record:
        columns = ("rows", "shares", "custodians", "together", "the first alone")
        record("custodians", columns, measured, keys=3, seeds=[options.seed])


if __name__ == "__main__":
    main()
