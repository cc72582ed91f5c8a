"""k-NN over a batch: shares of epsilon, radii, exact losses by enumeration, refusals."""

import math
from fractions import Fraction

import numpy as np
import pytest

from labelwall.teacher.mechanisms import batch
from labelwall.teacher.mechanisms.overlap import clique_bounds
from labelwall.wall.errors import InvalidInput
from tests.make import ZeroNoise
from tests.teacher.mechanisms.test_batch import CLASSES, choice_law, voters_of


def knn(**fields):
    return batch.BatchKnn(**{"k": 4, "epsilon": 1.0, "records": 60, **fields})


def test_radii_of_a_grid_hold_the_mass_wanted():
    """Uniform counts: a disc of area k / n of the box; one full cell: half of it; none: the box."""
    middle = np.array([[0, 0]], dtype=np.int8)
    uniform = math.sqrt(batch.radii_of_grid(middle, np.full(64, 50), 8, 100)[0])
    assert uniform == pytest.approx(math.sqrt(100 / 3200 / math.pi) * 127, abs=0.5)
    corner = np.zeros(16, dtype=np.int64)
    corner[0] = 100
    half = math.sqrt(batch.radii_of_grid(np.array([[-63, -63]], dtype=np.int8), corner, 4, 50)[0])
    assert half == pytest.approx(math.sqrt(0.5 * (127 / 4) ** 2 * 4 / math.pi), abs=0.8)
    everything = batch.radii_of_grid(middle, np.full(16, -1), 4, 5)[0]
    assert everything >= 2 * 63**2
    high = batch.radii_of_grid(np.zeros((1, 16), dtype=np.int8), np.full(2**16, 1), 2, 2**15)[0]
    assert 0 < high <= 16 * 64**2


@pytest.mark.parametrize("conversion", ["interactive", "grid"])
def test_the_balls_hold_about_k_where_nothing_is_noisy(conversion):
    rng = np.random.default_rng(0)
    records = rng.integers(-63, 64, (4000, 2))
    voters = voters_of(records, rng.integers(0, CLASSES, 4000), rng.integers(-40, 41, (50, 2)))
    mechanism = knn(k=40, conversion=conversion, records=4000, candidates=40, epsilon=100.0)
    found = mechanism.draw(batch.BATCH, voters, [str(i) for i in range(50)], ZeroNoise())
    inside = voters.ball_votes(found[:, 2]).sum(axis=1)
    assert abs(inside.mean() - 40) < 6
    assert np.abs(inside - 40).mean() < 12


@pytest.mark.parametrize("conversion", ["interactive", "grid"])
@pytest.mark.parametrize("records", [60, None])
def test_the_shares_add_up_to_epsilon(conversion, records):
    """Scales and rates as drawn, for queries that do not overlap (every clique is one query)."""
    rng, silent = np.random.default_rng(1), ZeroNoise()
    queries = np.array([[-60, -60], [60, 60]])
    voters = voters_of(rng.integers(-63, 64, (60, 2)), rng.integers(0, CLASSES, 60), queries)
    shares = {"conversion_share": 0.3, "records_share": 0.1, "k": 1}
    mechanism = knn(conversion=conversion, records=records, **shares)
    assert mechanism.draw(batch.BATCH, voters, ["a", "b"], silent)[:, 1].tolist() == [1, 1]
    scales = {draw.release: draw.scale for draw in silent.drawn}
    spent = sum(1 / Fraction(scale) for scale in scales.values())
    spent += sum({2 * rate for _, _, rate in silent.choices})
    assert spent <= 1
    assert float(spent) == pytest.approx(1.0)
    assert (batch.COUNT_NOISE in scales) == (records is None)
    assert (batch.RADIUS_NOISE in scales) == (conversion == "grid")
    assert scales[batch.LABEL_NOISE] == pytest.approx(1 / (0.7 if records else 0.6))


@pytest.mark.parametrize("accounting", ["local", "queries"])
def test_the_exact_loss_of_interactive_radii_is_at_most_their_share(accounting):
    """Each query's choice of a radius, enumerated for every neighbour; labels: test_batch."""
    queries, share = np.array([0, 3, 4, 9, 30, 60])[:, None], 1.0
    mechanism = knn(epsilon=2.0, conversion="interactive", candidate_accounting=accounting)
    radii = batch.candidate_radii(1, mechanism.k, 40, mechanism.candidates)
    sizes = clique_bounds(queries.astype(np.int8), np.full(6, radii[-1]), accounting)
    assert accounting == "queries" or 1 < sizes.max() < 6

    def laws(records):
        counts = [[(((records - q) ** 2).sum(axis=1) <= r).sum() for r in radii] for q in queries]
        losses = np.abs(np.array(counts) - mechanism.k)
        rates = [Fraction(share) / (2 * size) for size in sizes.tolist()]
        return np.array([choice_law(*pair) for pair in zip(losses, rates, strict=True)])

    worst = 0.0
    for seed in range(4):
        records = np.random.default_rng(seed).integers(-20, 63, (20 * seed, 1))
        without = laws(records)
        for place in range(-20, 63):
            added = laws(np.vstack([records, [[place]]]))
            worst = max(worst, float(np.abs(np.log(added / without)).max(axis=1).sum()))
    assert worst <= share * (1 + 1e-9)
    assert worst > 0.3 * share or accounting == "queries"


def test_the_baseline_is_the_exponential_mechanism_over_the_queries():
    silent, queries = ZeroNoise(), np.array([[0], [10], [50]])
    records, labels = np.array([[1], [2], [3], [11], [12]]), np.array([2, 2, 1, 0, 0])
    found = knn(conversion="none", k=3, epsilon=0.6).draw(
        batch.BATCH, voters_of(records, labels, queries), list("abc"), silent
    )
    assert found.tolist() == [[2, 3, -1], [0, 3, -1], [0, 3, -1]]
    rates = [(release, rate) for release, _, rate in silent.choices]
    assert rates == [(batch.LABEL_NOISE, Fraction(0.6) / 6)] * 3
    assert silent.drawn == []


@pytest.mark.parametrize(
    ("dimensions", "records", "epsilon"),
    [(17, None, 1.0), (60, 10**6, 1.0), (10, 1000, 1.0), (2, 60, 0.5)],
)
def test_a_senseless_grid_is_refused_before_the_charge(dimensions, records, epsilon):
    with pytest.raises(InvalidInput, match=r"mechanism\.conversion.*interactive"):
        knn(conversion="grid", records=records, epsilon=epsilon).require_batch(5, dimensions)
