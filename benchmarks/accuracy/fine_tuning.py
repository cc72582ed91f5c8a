r"""What a pretrained student gains, on class folders of images in a zip file.

    python benchmarks/accuracy/fine_tuning.py --images CIFAR10.zip --private 6000 --public 1500 \
        --epsilon 1 --share 0.3 --threads 2

One line of JSON: shares of right labels, of public and of test rows. "one": the classifier that
the whole budget buys on the first network's features. "round 1": the same for ``--share`` of it;
"tuned", "student": the network that it taught, alone and beside the classifier; "round 2": the
classifier that the rest buys on the features of both networks, "of tuned features" on those of the
tuned one alone. Share 1 is one round. Noise is the mechanism's own, and no test label is used.
``--held_out`` leaves so many public rows out of everything but a score: choose by "held".
``--others 'image_side=128' 'kept_views=2 steps=600'`` teaches further networks by the same labels,
with a line each; "cpu" are the processor's seconds of views and training.
"""

import argparse
import io
import json
import math
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image

from labelwall.benchmarks.accuracy.linear_accuracy import DELTA
from labelwall.experiment.config.own import Findings, default_mechanism
from labelwall.student.asking.features import linear_power, principal_axes
from labelwall.student.batches import Lesson, Pool
from labelwall.student.fine_tuning import Layer, divide, keep_views, start
from labelwall.student.linear.linear_model import fit, with_neighbours
from labelwall.student.linear.measure import FitSettings
from labelwall.student.public_settings import IMAGENET, STAGES
from labelwall.student.student_config import StudentConfig
from labelwall.student.train import train
from labelwall.teacher.mechanisms.base import Priced
from labelwall.teacher.mechanisms.calibration import calibrate
from labelwall.teacher.mechanisms.sums import SUM, PrivateLinear
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.features.embedder import RAW_UNIT, Embedder, quantise
from labelwall.wall.label_kinds import ClassLabels
from labelwall.wall.matrices import MAX_ENTRY, bias
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.networks import efficientnet_lite, load_network
from labelwall.wall.progress import no_progress

Rows = tuple[np.ndarray, np.ndarray]
Features = dict[str, np.ndarray]  # of each split, float [n, d]


def read(archive: Path, counts: dict[str, int], seed: int) -> dict[str, Rows]:
    """(images uint8 [n, h, w, 3], labels int64 [n]) of each split, drawn from all folders."""
    with zipfile.ZipFile(archive) as stored:
        names = sorted(name for name in stored.namelist() if name.endswith((".jpg", ".png")))
        classes = sorted({Path(name).parent.name for name in names})
        order, found = np.random.default_rng(seed).permutation(len(names)), {}
        for split, count in counts.items():
            chosen, order = [names[row] for row in order[:count]], order[count:]
            pixels = [
                np.asarray(Image.open(io.BytesIO(stored.read(name))).convert("RGB"))
                for name in chosen
            ]
            labels = np.array([classes.index(Path(name).parent.name) for name in chosen])
            found[split] = np.stack(pixels), labels
    return found


@dataclass(frozen=True)
class Answered:
    """What a round's sums give: log probabilities of each split's rows, and a linear head."""

    says: Features
    head: Layer


def asked(
    features: Features, labels: np.ndarray, classes: int, cost: tuple[float, float]
) -> Answered:
    """A classifier by noisy sums of the private rows. ``cost``: epsilon, and the share of it."""
    (epsilon, share), public = cost, features["public"]
    findings = Findings("vectors", tuple(map(str, range(classes))), len(public))
    records, part = len(labels), epsilon * math.sqrt(share)
    mechanism = PrivateLinear(**default_mechanism(findings, records, part, DELTA, 1))  # type: ignore[arg-type]
    (solved,) = calibrate([Priced(mechanism, mechanism.steps, mechanism.steps)], epsilon, DELTA)
    noise = solved.require("noise_multiplier") / math.sqrt(share)
    solved = replace(solved, noise_multiplier=noise)
    assert solved.axes is not None
    center, axes = principal_axes(public, solved.axes, linear_power)
    length = max(MAX_ENTRY, RAW_UNIT * math.sqrt(axes.shape[1]))

    def embedded(x: np.ndarray) -> np.ndarray:
        return quantise(x, tuple(center.tolist()), length, axes.astype(np.float64))[0]

    index = ExactIndex(embedded(features["private"]), np.arange(records))

    def ask(step: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        voters = Voters(index, labels, classes, weights[np.newaxis], length)
        return weights, solved.draw(SUM, voters, [f"{step:064x}"], SystemEntropy())[0]

    rows = embedded(public)
    model = fit(ask, rows, FitSettings("class", classes, length, noise, solved.clip, solved.steps))
    assert model is not None
    says = with_neighbours(model.says, rows)
    turned = (public - center) @ axes.astype(np.float64)
    longer = length / float(np.linalg.norm(turned, axis=1).mean())
    layer = axes @ model.weights[:-1] * longer
    head = Layer(layer, bias(length) * model.weights[-1] - center @ layer)
    others = [name for name in features if name != "private"]
    return Answered({name: np.log(says(embedded(features[name])) + 1e-6) for name in others}, head)


def tuned(
    first: ExtractorSpec,
    images: np.ndarray,
    round_1: Answered,
    student: StudentConfig,
    threads: int,
) -> ExtractorSpec:
    """The network that a round's probabilities of public images taught."""
    soft = np.exp(round_1.says["public"])
    labels = ClassLabels.of(soft.shape[1])
    network = divide(start(first, student, labels), student.trained_blocks)
    round_1.head.begin(network.rest.head)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "views.npy"
        views = keep_views(file, network.front, images, student, 3, no_progress, threads)
        weights = train(
            student,
            Lesson(pool=Pool(views, labels), labels=soft.argmax(axis=1), chances=soft),
            run_dir=folder,
            seed=3,
            begin=(network.rest, network.depths),
        )
    return network.trained(weights)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=Path, required=True, help="zip of class folders")
    parser.add_argument("--private", type=int, default=6000)
    parser.add_argument("--public", type=int, default=1500)
    parser.add_argument("--held_out", type=int, default=0)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=0, help="of the split")
    parser.add_argument("--features", choices=IMAGENET, default=STAGES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--others", nargs="*", default=[], help="settings of further students")
    known = StudentConfig(backbone="pretrained", objective="fixmatch", augment="natural")
    known = replace(known, steps=300, learning_rate=5e-4)
    for field in (
        "steps",
        "image_side",
        "trained_blocks",
        "kept_views",
        "learning_rate",
        "augment",
    ):
        value = getattr(known, field)
        parser.add_argument(f"--{field}", type=type(value), default=value)
    options = parser.parse_args()
    student = replace(
        known, **{name: value for name, value in vars(options).items() if name in vars(known)}
    )
    counts = {"test": 2000, "held": options.held_out}
    counts |= {"public": options.public, "private": options.private}
    splits = read(options.images, {n: count for n, count in counts.items() if count}, options.seed)
    truth = {name: labels for name, (_, labels) in splits.items()}
    classes = 1 + max(int(labels.max()) for labels in truth.values())
    first = efficientnet_lite(options.features, splits["public"][0].shape[1:], classes)

    def features(spec: ExtractorSpec, names: Sequence[str] = tuple(splits)) -> Features:
        plain = replace(spec, center=(), scale=1.0)
        embedder = Embedder(plain, workers=options.threads)
        return {name: embedder.features(splits[name][0]) for name in names}

    def right(said: Features) -> dict[str, float]:
        names = [name for name in said if name != "private"]
        return {name: float((said[name].argmax(axis=1) == truth[name]).mean()) for name in names}

    before = features(first)
    for epsilon, changed in product(options.epsilon, ("", *options.others)):
        if not changed:  # the others are taught by the same labels
            one, round_1 = (
                asked(before, truth["private"], classes, (epsilon, share))
                for share in (1.0, options.share)
            )
        settings = dict(word.split("=") for word in changed.split())
        other = replace(
            student, **{name: type(vars(student)[name])(text) for name, text in settings.items()}
        )
        began = time.process_time()
        network = tuned(first, splits["public"][0], round_1, other, options.threads)
        seconds, head = time.process_time() - began, load_network(network).head
        after = features(network, [n for n in splits if options.share < 1 or n != "private"])
        weight, offset = head.weight.numpy().T, head.bias.numpy()
        said = {name: x @ weight + offset for name, x in after.items()}
        layer = round_1.head
        found = {
            "one": right(one.says),
            "round 1": right(round_1.says),
            "tuned": right(said),
            "student": right(
                {n: x + before[n] @ layer.weights + layer.constant for n, x in said.items()}
            ),
        }
        if options.share < 1:
            both = beside([before, after])
            rest = epsilon, 1 - options.share
            found["round 2"] = right(asked(both, truth["private"], classes, rest).says)
            found["of tuned features"] = right(asked(after, truth["private"], classes, rest).says)
        line = {**vars(options), "images": "", "others": "", "epsilon": epsilon, **settings}
        print(json.dumps({**line, "cpu": round(seconds), **found}), flush=True)


def beside(kinds: Sequence[Features]) -> Features:
    """Kinds of features side by side, each over its deviation among public rows."""
    factors = [1 / float(np.sqrt(kind["public"].var(axis=0).sum())) for kind in kinds]
    return {
        name: np.concatenate([k[name] * f for k, f in zip(kinds, factors, strict=True)], axis=1)
        for name in kinds[0]
    }


if __name__ == "__main__":
    main()
