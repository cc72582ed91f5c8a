r"""Public rows that differ from the private ones: README's one command, nothing tuned.

    python benchmarks/accuracy/shift.py --scratch FOLDER --out FILE
    python benchmarks/accuracy/shift.py --scratch FOLDER --out FILE --root DATA --cases digits
    python benchmarks/accuracy/shift.py --scratch FOLDER --out FILE --cases --tables vowel
    python benchmarks/accuracy/shift.py --scratch FOLDER --out FILE --cases --photographs ZIP
    python benchmarks/accuracy/shift.py --scratch FOLDER --out FILE --cases --modules mono

The rows are docstrings of four Python packages (the class is the package), as hashed words on 128
axes that those of eight other packages give; `--rows FILE` takes other vectors `x` with classes `y`
(npz). 6,000 rows are private, 800 public and 800 test rows, equally many of each class, unless the
case says otherwise. `column moved` adds two deviations to the public rows' widest column, `column
shrunk` leaves 0.3 of it. `--tables` names tables of KEEL (shared/tables.py says how to install
them) as cases: 60% of the rows are private, 20% public, 20% test rows, columns over the public
rows' deviation. The case `digits` takes MNIST from `--root` (torchvision's layout) as private and
test rows, and scikit-learn's digits, enlarged to 28 pixels, as public rows. `--photographs` takes
colour images from a zip file with a folder for each class: 6,000 private, 1,500 public and 1,000
test ones; the public ones as they are, grey, blurred, or half as bright. `--modules` takes solar
cells, defective or not, of one type of module (`pip install --no-deps --target PLACE
elpv-dataset==1.0.0.post1`, and PLACE on PYTHONPATH): 60% are private, 20% public and 20% test ones;
`mono by poly` has as many public ones of the other type.

Columns: logistic regression on the private rows (digits: on HOG; photographs: on a network's last
layer); the classifier that the last round released; the student; its balanced accuracy; its worst
class; what the run itself estimates; one noisy sum a class on 8 public axes, nearest class, at the
same epsilon. All but the estimate on the test rows. A cell is the median over `--seeds` splits; a
line of JSON is appended for each run, and runs that are there are not repeated.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from labelwall.benchmarks.accuracy.linear_accuracy import gaussian_mu
from labelwall.benchmarks.accuracy.regret_data import docstrings
from labelwall.benchmarks.shared.record import add_record, percent, record
from labelwall.benchmarks.shared.tables import keel
from labelwall.experiment.config.settings import load_config
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.student.asking.features import first_extractor
from labelwall.student.linear.stored import stored_layer
from labelwall.student.round_files import CLASSIFIER
from labelwall.wall.datasets.sources import describe
from labelwall.wall.errors import MissingData
from labelwall.wall.features.embedder import Embedder
from labelwall.wall.hog import hog_features
from labelwall.wall.networks import efficientnet_lite

PACKAGES = ("pandas", "sqlalchemy", "sympy", "ray")
AXES, WORDS, TEXT = 128, 20_000, 300  # of the vectors; known words; characters of a docstring
PRIVATE, HELD, RARE, FEW = 6_000, 800, 0.01, 200  # rows; a rare class's share; few private rows
IMAGES, TESTED = 20_000, 2_000
RIVAL_AXES = 8
PHOTOGRAPHS = 6_000, 1_500, 1_000  # private, public and test ones
CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "photographs": lambda image: image,
    "grey": lambda image: image.convert("L").convert("RGB"),
    "blurred": lambda image: image.filter(ImageFilter.GaussianBlur(1)),
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.5),
}
MODULES = ("mono", "mono by poly", "poly", "poly by mono")
SIDE = 160  # pixels of a cell
CASES = (
    *("alike", "rare", "rare alike", "missing", "moved", "column moved", "column shrunk"),
    *("50 public", "100 public", "400 public", "200 private", "digits"),
)
COLUMNS = (
    "without privacy",
    "released",
    "student",
    "balanced",
    "worst",
    "estimate",
    "one noisy sum",
)
NAMED = {  # of cases in the result's file
    "rare": "a class has 1% of the private, 25% of the public rows",
    "missing": "public rows of two of the classes",
    "moved": "public vectors moved by half their length",
    "column moved": "a public column moved",
    "column shrunk": "a public column shrunk",
    "digits": "MNIST, public digits of another scanner",
    "mono": "solar cells, mono",
    "mono by poly": "solar cells, mono; public ones poly",
    "poly": "solar cells, poly",
    "poly by mono": "solar cells, poly; public ones mono",
    **{case: f"{case} rows" for case in CASES if case[0].isdigit()},
    **{change: f"CIFAR-10, public photographs {change}" for change in CHANGES},
}
Rows = tuple[np.ndarray, np.ndarray]
Split = dict[str, np.ndarray]


def texts() -> Rows:
    """(float32 [n, AXES], labels int64 [n]): no axis has seen the packages of the classes."""
    folder = Path(np.__file__).parents[1]
    others, _ = docstrings(folder)
    rows, labels = docstrings(folder, PACKAGES)
    words = TfidfVectorizer(max_features=WORDS, stop_words="english", sublinear_tf=True)
    axes = TruncatedSVD(AXES, random_state=0).fit(words.fit_transform([t[:TEXT] for t in others]))
    x = axes.transform(words.transform([text[:TEXT] for text in rows]))
    return x.astype(np.float32), labels


def vectors(rows: Rows, case: str, seed: int) -> Split:
    """Private, public and test rows of a case."""
    x, y = rows
    rng, classes = np.random.default_rng(seed), int(y.max()) + 1
    left = [list(rng.permutation(np.flatnonzero(y == number))) for number in range(classes)]

    def take(count: int, shares: np.ndarray) -> np.ndarray:
        wanted = np.rint(count * shares).astype(int)
        taken = [own[:n] for own, n in zip(left, wanted, strict=True)]
        left[:] = [own[n:] for own, n in zip(left, wanted, strict=True)]
        return rng.permutation(np.concatenate(taken)).astype(np.int64)

    def rare(chosen: np.ndarray) -> np.ndarray:
        last = np.flatnonzero(y[chosen] == classes - 1)
        few = round(RARE / (1 - RARE) * (len(chosen) - len(last)))
        return np.delete(chosen, last[few:])

    equal = np.full(classes, 1 / classes)
    present = (np.arange(classes) < classes // 2) / (classes // 2)
    test = take(HELD, equal)
    pool = int(case.split()[0]) if case.endswith("public") else HELD
    public = take(pool, present if case == "missing" else equal)
    private = take(FEW if case == "200 private" else PRIVATE, equal)
    if case.startswith("rare"):
        private = rare(private)
        public = rare(public) if case == "rare alike" else public
    rows = x[public]
    if case == "moved":
        away = rng.normal(size=x.shape[1]).astype(np.float32)
        rows = rows + away * np.linalg.norm(x, axis=1).mean() / 2 / np.linalg.norm(away)
    if case.startswith("column"):
        column = rows[:, x.std(axis=0).argmax()]
        column[:] = column + 2 * column.std() if case == "column moved" else 0.3 * column
    return {
        "private_x": x[private],
        "private_y": y[private],
        "public_x": rows,
        "test_x": x[test],
        "test_y": y[test],
    }


def tables(name: str, seed: int) -> Split:
    """A table of KEEL."""
    x, y = keel(name)
    order = np.random.default_rng(seed).permutation(len(y))
    private, public, test = np.split(order, [int(0.6 * len(y)), int(0.8 * len(y))])
    scaled = (x - x[public].mean(axis=0)) / (x[public].std(axis=0) + 1e-6)
    rows = {"private": private, "public": public, "test": test}
    split = {f"{name}_x": scaled[own] for name, own in rows.items()}
    return split | {"private_y": y[private], "test_y": y[test]}


def digits(root: Path, seed: int) -> Split:
    """MNIST with public digits of another scanner."""
    from sklearn.datasets import load_digits
    from torchvision.datasets import MNIST

    train, test = MNIST(root, train=True), MNIST(root, train=False)
    rng = np.random.default_rng(seed)
    rows, tested = rng.permutation(len(train.data))[:IMAGES], rng.permutation(10_000)[:TESTED]
    small = (load_digits().images * 255 / 16).astype(np.uint8)
    sized = [np.asarray(Image.fromarray(image).resize((28, 28), 2)) for image in small]
    return {
        "private_x": train.data.numpy()[rows, :, :, None],
        "private_y": train.targets.numpy()[rows],
        "public_x": np.stack(sized)[..., None],
        "test_x": test.data.numpy()[tested, :, :, None],
        "test_y": test.targets.numpy()[tested],
    }


def photographs(archive: Path, change: str, seed: int) -> Split:
    """Colour images by class, of which the public ones are changed."""
    with zipfile.ZipFile(archive) as stored:
        names = sorted(name for name in stored.namelist() if name.endswith((".jpg", ".png")))
        names = np.random.default_rng(seed).permutation(names)[: sum(PHOTOGRAPHS)].tolist()
        images = [Image.open(BytesIO(stored.read(name))).convert("RGB") for name in names]
    classes = sorted({Path(name).parent.name for name in names})
    y = np.array([classes.index(Path(name).parent.name) for name in names])
    private, public, test = np.split(np.arange(len(y)), np.cumsum(PHOTOGRAPHS)[:2])
    changed = [CHANGES[change](images[row]) for row in public]
    x = np.stack([np.asarray(image) for image in images])
    return {
        "private_x": x[private],
        "private_y": y[private],
        "public_x": np.stack([np.asarray(image) for image in changed]),
        "test_x": x[test],
        "test_y": y[test],
    }


@lru_cache(maxsize=1)
def solar_cells() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(uint8 [n, SIDE, SIDE, 3], whether probably defective int64 [n], type of module [n])."""
    found = importlib.util.find_spec("elpv_dataset")
    if found is None or found.origin is None:
        raise MissingData("elpv-dataset is not installed: see --help")
    data = Path(found.origin).parent / "data"
    table = [line.split() for line in (data / "labels.csv").read_text().splitlines()]
    images = [Image.open(data / name).convert("RGB").resize((SIDE, SIDE), 2) for name, *_ in table]
    defective = np.array([float(chance) > 0.5 for _, chance, _ in table]).astype(np.int64)
    return np.stack([np.asarray(i) for i in images]), defective, np.array([row[2] for row in table])


def modules(case: str, seed: int) -> Split:
    """Solar cells of one type of module, with public ones of the same or of another."""
    x, y, types = solar_cells()
    rng, named = np.random.default_rng(seed), case.split(" by ")
    private_type, public_type = named[0], named[-1]
    own = rng.permutation(np.flatnonzero(types == private_type))
    private, public, test = np.split(own, [int(0.6 * len(own)), int(0.8 * len(own))])
    if public_type != private_type:
        public = rng.permutation(np.flatnonzero(types == public_type))[: len(public)]
    return {
        "private_x": x[private],
        "private_y": y[private],
        "public_x": x[public],
        "test_x": x[test],
        "test_y": y[test],
    }


def features(x: np.ndarray) -> np.ndarray:
    """Of grey images HOG, of colour images a network's, of vectors themselves."""
    if x.ndim == 4 and x.shape[3] == 3:
        return of_network(x.shape, x.tobytes())
    return hog_features(x).astype(np.float32) if x.ndim == 4 else x


@lru_cache(maxsize=3)
def of_network(shape: tuple[int, ...], content: bytes) -> np.ndarray:
    rows = np.frombuffer(content, np.uint8).reshape(shape)
    spec = efficientnet_lite("efficientnet_lite2", shape[1:], 10)
    return Embedder(spec).features(rows).astype(np.float32)


def logistic(split: Split) -> float:
    """The share of test rows that is right by logistic regression on the private rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(C=10.0, max_iter=1000)
        model.fit(features(split["private_x"]), split["private_y"])
    return float(model.score(features(split["test_x"]), split["test_y"]))


def one_sum(split: Split, epsilon: float, rng: np.random.Generator) -> float:
    """The same by one noisy sum and count a class on public axes, nearest mean."""
    found = features(split["public_x"])
    axes = PCA(min(RIVAL_AXES, *found.shape), random_state=0).fit(found)
    longest = np.median(np.linalg.norm(axes.transform(found), axis=1))
    x = axes.transform(features(split["private_x"])) / longest
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    both = np.column_stack([x, np.ones(len(x))])  # at most sqrt(2) long
    classes = 1 + max(int(split[name].max()) for name in ("private_y", "test_y"))
    members = np.eye(classes)[split["private_y"]]
    sums = members.T @ both
    sums += rng.normal(0, 2**0.5 / gaussian_mu(epsilon), sums.shape)
    means = sums[:, :-1] / np.maximum(sums[:, -1:], 1)
    tested = axes.transform(features(split["test_x"])) / longest
    nearest = ((tested[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    return float((nearest == split["test_y"]).mean())


def released(folder: RunFolder, split: Split) -> float:
    """The same by the classifier that the last round left."""
    summary = folder.finished()
    assert summary is not None
    classifier = stored_layer(folder.round(len(summary.rounds)) / CLASSIFIER)
    if classifier is None:
        return float("nan")
    if file := summary.rounds[-1].features:
        spec = folder.extractor(file)
    else:  # as they are
        config = load_config(folder.config)
        spec = first_extractor(config.public_side(), describe(config.data))
    found = Embedder(spec).embed(split["test_x"])[0]
    said = classifier.probabilities(found).argmax(axis=1)
    return float((said == split["test_y"]).mean())


def measure(
    split: Split, epsilon: float, seed: int, scratch: Path, options: list[str]
) -> dict[str, float | None]:
    """One run by the command line."""
    with tempfile.TemporaryDirectory(dir=scratch) as place:
        file, run_dir = Path(place) / "rows.npz", Path(place) / "run"
        np.savez(file, **split)  # type: ignore[arg-type]
        command = [sys.executable, "-m", "labelwall.pipeline", "run", "--data", str(file)]
        command += ["--epsilon", str(epsilon), "--seed", str(seed), "--threads", "1"]
        command += ["--run_dir", str(run_dir), "--custodian_dir", str(Path(place) / "custodian")]
        command += ["--quiet", *options]
        # A class that is rare among private rows alone stops the first of two calls
        folder, done = RunFolder(run_dir), subprocess.run(command, stdout=subprocess.DEVNULL)
        if done.returncode and folder.stopped.exists():
            done = subprocess.run(command, stdout=subprocess.DEVNULL)
        done.check_returncode()
        summary = folder.finished()
        assert summary is not None
        confusion = np.array(summary.kept.confusion)
        right = confusion.diagonal() / np.maximum(confusion.sum(axis=1), 1)
        estimate = summary.kept.estimate
        values = (
            logistic(split),
            released(folder, split),
            summary.test_accuracy,
            float(right.mean()),
            float(right.min()),
            estimate.right if estimate is not None and estimate.known else None,
            one_sum(split, epsilon, np.random.default_rng(seed)),
        )
    return dict(zip(COLUMNS, values, strict=True))


def lines(out: Path) -> Iterator[dict]:
    """What was measured before."""
    if out.exists():
        yield from map(json.loads, out.read_text().splitlines())


def table(runs: list[dict]) -> Iterator[tuple]:
    """Medians, in percent, printed and given; `?` where half of the runs say nothing."""
    print("| case, epsilon | runs |", " | ".join(COLUMNS), "|")
    print("|---|---|" + "---|" * len(COLUMNS))
    for case, epsilon in sorted({(r["case"], r["epsilon"]) for r in runs}):
        own = [r for r in runs if (r["case"], r["epsilon"]) == (case, epsilon)]
        cells = [percent([run[column] for run in own]) for column in COLUMNS]
        shown = ["?" if cell is None else f"{cell:.1f}" for cell in cells]
        print(f"| {case}, {epsilon:g} | {len(own)} |", " | ".join(shown), "|")
        yield case, epsilon, len(own), *cells


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scratch", type=Path, required=True, help="folder for runs and vectors")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one a run")
    parser.add_argument("--rows", type=Path, help="npz with x and y; docstrings by default")
    parser.add_argument("--root", type=Path, help="MNIST in torchvision's layout, for `digits`")
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES[:-1]))
    parser.add_argument("--tables", nargs="*", default=[], help="of KEEL, each a case")
    parser.add_argument("--photographs", type=Path, help="zip file with a folder for each class")
    parser.add_argument("--changes", nargs="*", choices=list(CHANGES), default=list(CHANGES))
    parser.add_argument("--modules", nargs="*", choices=MODULES, default=[])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--balanced", action="store_true", help="of the runs; in a file apart")
    add_record(parser)
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    rows = options.rows or options.scratch / "docstrings.npz"
    if not rows.exists() and {*options.cases} - {"digits"}:
        x, y = texts()
        np.savez(rows, x=x, y=y)
    runs, changes = list(lines(options.out)), options.changes if options.photographs else []
    for epsilon in options.epsilons:
        for case in [*options.cases, *options.tables, *changes, *options.modules]:
            for seed in options.seeds:
                key = {"case": case, "epsilon": epsilon, "seed": seed}
                if any(key.items() <= run.items() for run in runs):
                    continue
                if case == "digits":
                    split = digits(options.root, seed)
                elif case in changes:
                    split = photographs(options.photographs, case, seed)
                elif case in options.modules:
                    split = modules(case, seed)
                elif case in options.tables:
                    split = tables(case, seed)
                else:
                    with np.load(rows) as stored:
                        split = vectors((stored["x"], stored["y"]), case, seed)
                own = ["--balanced"] * options.balanced
                runs.append(key | measure(split, epsilon, seed, options.scratch, own))
                with options.out.open("a") as file:
                    file.write(json.dumps(runs[-1]) + "\n")
    rows = [*table(runs)]
    if not options.record:
        return
    if folders := [run for run in runs if run["case"] == "photographs"]:
        about, shares = ("case", "epsilon", "seed"), ("without privacy", "released", "student")
        each = [[*map(run.get, about), *(percent([run[n]]) for n in shares)] for run in folders]
        record("own_folders", (*about, *shares), each, keys=3, seeds=options.seeds)
    named = [(NAMED.get(case, case), *row) for case, *row in rows if case != "photographs"]
    if named:
        columns = ("case", "epsilon", "splits", *COLUMNS)
        record("shift", columns, named, keys=2, seeds=options.seeds)


if __name__ == "__main__":
    main()
