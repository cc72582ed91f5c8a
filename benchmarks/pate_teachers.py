"""Training time of PATE's classifiers on MNIST, and their accuracy on the public images.

    python benchmarks/pate_teachers.py --data ROOT --workers 2

Networks (teacher/classifiers/cnn_ensemble.py): 250 shards of about 240 images, trained anew in
a temporary folder.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from joblib.externals.loky import get_reusable_executor

from labelwall.teacher.classifiers.cnn_ensemble import CnnEnsemble
from labelwall.teacher.records.sources import open_records
from labelwall.wall.datasets.config import DataConfig
from labelwall.wall.datasets.sources import describe, read_public


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with MNIST in torchvision's layout"
    )
    parser.add_argument("--teachers", type=int, default=250)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--queries", type=int, default=1000)
    options = parser.parse_args()
    data = DataConfig("mnist", root=str(options.data))
    task, records, public = describe(data), open_records(data, describe(data)), read_public(data)
    key = bytes(32)  # a benchmark's; a teacher's is secret
    with tempfile.TemporaryDirectory() as folder:
        began, used = time.perf_counter(), _cpu()
        ensemble = CnnEnsemble(
            records,
            num_classes=task.num_classes,
            teachers=options.teachers,
            key=key,
            directory=Path(folder),
            workers=options.workers,
        )
        get_reusable_executor().shutdown(wait=True)  # so that its processes' time is known
        seconds, cpu = time.perf_counter() - began, _cpu() - used
        print(f"{options.teachers} networks: {seconds:.0f} seconds, {cpu:.0f} CPU seconds")
    asked = slice(options.queries)
    report(ensemble, public.inputs[asked], public.labels[asked], options.teachers)


def report(ensemble: CnnEnsemble, images: np.ndarray, labels: np.ndarray, teachers: int) -> None:
    """Accuracy of the plurality and, on average, of a single network; the plurality's size."""
    votes = ensemble.votes(images)
    plurality = (votes.argmax(axis=1) == labels).mean()
    single = votes[np.arange(len(labels)), labels].mean() / teachers
    quantiles = np.quantile(votes.max(axis=1), [0.05, 0.25, 0.5]).astype(int).tolist()
    print(
        f"plurality right {100 * plurality:.1f}%, a single network {100 * single:.1f}%; "
        "votes of the plurality at"
    )
    print(f"5%, 25%, 50% of {len(labels)} queries: {quantiles}")


def _cpu() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


if __name__ == "__main__":
    main()
