"""A round's features of public rows on a plane, and how often nearest neighbours agree.

It follows from features, released labels and public truth alone.
"""

from collections.abc import Sequence

import numpy as np
from threadpoolctl import threadpool_limits

from ..wall.files import reading, write_arrays
from ..wall.labels import has_truth
from ..wall.messages import ExtractorSpec
from .asking.asking_features import features_of
from .asking.public_rows import MIN_LABELLED, PublicRows
from .learning import released
from .results import RoundResult, estimates, worse_rounds
from .round_files import MAP, RoundFiles

LEAST_ROWS, MOST_ROWS = 100, 600  # of a map: t-SNE of 600 rows takes 1.3 s of a core
MOST_COMPARED = 2_000  # rows whose nearest neighbours are looked at


def some_rows(count: int, most: int) -> np.ndarray:
    """Positions of at most ``most`` of ``count`` rows, ascending and the same in every run."""
    return np.sort(np.random.default_rng(0).permutation(count)[:most])


def save_map(public: PublicRows, results: Sequence[RoundResult], folder: RoundFiles) -> None:
    """Store where the last round's features put public rows of classes, and their labels then.

    A round has no map if there are few public rows or few different ones. Rounds that asked with
    the same features have the same places.
    """
    number, size = len(results), len(public.data.inputs)
    if public.task.labels.kind != "class" or size < LEAST_ROWS:
        return
    last = results[-1]
    same = [r.features == last.features and r.features_of == last.features_of for r in results]
    earlier = folder.round(same.index(True) + 1) / MAP
    if earlier.exists():
        with reading(earlier), np.load(earlier) as stored:
            rows, places = stored["rows"], stored["places"]
    else:
        rows = some_rows(size, MOST_ROWS)
        features = public.features.quantised(features_of(public, last, folder).spec)[rows]
        if len(np.unique(features, axis=0)) < LEAST_ROWS:
            return
        places = _on_a_plane(features.astype(np.float32))
    labels, _ = released(folder, number, size, worse_rounds(estimates(results, last.period)))
    write_arrays(folder.round(number) / MAP, rows=rows, places=places, labels=labels[rows])


def _on_a_plane(features: np.ndarray) -> np.ndarray:
    """Places in 0..1, float32 [n, 2], of features float32 [n, d] by t-SNE from two main axes."""
    from sklearn.manifold import TSNE  # slow

    wide = np.pad(features, ((0, 0), (0, max(0, 2 - features.shape[1]))))
    with threadpool_limits(1):  # the same sums on every number of cores
        found = TSNE(init="pca", max_iter=500, random_state=0, n_jobs=1).fit_transform(wide)
    lowest = found.min(axis=0)
    return np.asarray((found - lowest) / (found.max(axis=0) - lowest), dtype=np.float32)


def nearest_right(public: PublicRows, spec: ExtractorSpec) -> float | None:
    """Share of labelled rows whose nearest other one, by these features, has the same class.

    Of public rows or, if few have labels, of the test split. None for few of both, and without
    classes.
    """
    labels = public.data.labels if public.learned is None else public.learned
    tests = public.data.test_inputs
    # Nothing else may need features of the test rows, and those of many images take long
    costly = tests.ndim == 4 and len(tests) > MOST_COMPARED
    for name, truth in (("public", labels), ("test", public.data.test_labels)):
        if public.task.labels.kind != "class" or truth is None:
            continue
        rows = np.flatnonzero(has_truth(truth))[:MOST_COMPARED]
        if len(rows) < MIN_LABELLED or (name == "test" and costly):
            continue
        x = public.features.quantised(spec, name)[rows].astype(np.float32)  # exact products
        products = x @ x.T
        lengths = products.diagonal()
        distances = lengths - 2 * products
        np.fill_diagonal(distances, np.inf)
        return float((truth[rows[distances.argmin(axis=1)]] == truth[rows]).mean())
    return None
