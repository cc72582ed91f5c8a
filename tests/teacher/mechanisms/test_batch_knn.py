"""Radius neighbours and k-NN over a batch: exact losses by enumeration, charges, refusals."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms import batch
from labelwall.teacher.mechanisms.batch import BATCH, LABEL_NOISE, BatchKnn, RadiusNeighbours
from labelwall.teacher.mechanisms.overlap import MAX_QUERIES, clique_bounds
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.records.private_records import Records
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import ExtractorSpec, Outcome, Queries
from tests.make import LEDGER, ZeroNoise, plan_of, teach
from tests.teacher.laws import choice, laplace, winner

CLASSES = 3
MECHANISM = RadiusNeighbours(radius=0.25, epsilon=1.0)
SPEC = ExtractorSpec("box", (2,), CLASSES, mean=(0.5, 0.5), std=(0.5, 0.5))


def voters_of(records, labels, queries):
    """Integer rows [n, d] and [q, d]."""
    index = ExactIndex(records.astype(np.int8), np.arange(len(records)))
    return Voters(index, labels, CLASSES, queries.astype(np.int8))


def points(n, seed):
    """Vectors in the unit square."""
    return np.random.default_rng(seed).random((n, 2)).astype(np.float32)


def teacher(folder, entropy, mechanism=MECHANISM, batches=2, size=256):
    """Of 60 records in the unit square."""
    labels = np.random.default_rng(0).integers(0, CLASSES, 60)
    records = Records(points(60, 0), labels, np.arange(60))
    return teach(folder, plan_of(mechanism, batches), records, SPEC, entropy, size)


@pytest.mark.parametrize("noise", ["laplace", "exponential", "exponential_paper"])
@pytest.mark.parametrize("accounting", ["local", "component", "queries"])
def test_the_exact_loss_of_a_batch_is_at_most_epsilon(noise, accounting):
    """The sum of the queries' worst losses (answers are independent given the records), enumerated
    with records at any place and one more at any place."""
    epsilon, radius = 1.5, 6 / 126
    queries = np.array([0, 2, 3, 5, 16, 30, 41])[:, None]
    mechanism = RadiusNeighbours(radius=radius, epsilon=epsilon, noise=noise, accounting=accounting)
    worst = 0.0
    for seed, n in ((0, 0), (1, 1), (2, 12), (3, 60)):
        rng = np.random.default_rng(seed)
        records, labels = rng.integers(-10, 55, (n, 1)), rng.integers(0, CLASSES, n)
        laws = batch_laws(mechanism, records, labels, queries)
        for place, label in itertools.product(range(-10, 55), (0, CLASSES - 1)):
            added = batch_laws(
                mechanism, np.vstack([records, [[place]]]), np.append(labels, label), queries
            )
            worst = max(worst, float(np.abs(np.log(added / laws)).max(axis=1).sum()))
    assert worst <= epsilon * (1 + 1e-9)
    if accounting != "queries" and noise != "exponential_paper":
        assert worst > 0.7 * epsilon  # the accounting leaves little over


def batch_laws(mechanism, records, labels, queries):
    """Exact law of each query's label, float64 [q, classes], by independent code."""
    reach = round((mechanism.radius * 126) ** 2)
    radii = np.full(len(queries), reach)
    sizes = clique_bounds(queries.astype(np.int8), radii, mechanism.accounting)
    laws = []
    for query, size in zip(queries, sizes.tolist(), strict=True):
        near = ((records - query) ** 2).sum(axis=1) <= reach
        votes = np.bincount(labels[near], minlength=CLASSES)
        share = Fraction(mechanism.require("epsilon")) / size
        if mechanism.noise == "laplace":
            laws.append(winner(votes.tolist(), laplace(float(1 / share), int(45 / share) + 2)))
        else:
            half = 2 if mechanism.noise == "exponential_paper" else 1
            laws.append(choice(-votes, float(share / half)))
    return np.array(laws)


@pytest.mark.parametrize("noise", ["laplace", "exponential"])
def test_draws_follow_the_exact_law(noise):
    """A frequency of 700 is off by 0.13 with probability below 1.1e-10 (Hoeffding)."""
    mechanism = RadiusNeighbours(radius=6 / 126, epsilon=2.0, noise=noise)
    queries = np.array([[0], [4], [30]])
    records, labels = np.array([[-2], [1], [2], [5], [33]]), np.array([0, 2, 2, 1, 1])
    voters, drawn = voters_of(records, labels, queries), np.zeros((3, CLASSES))
    for number in range(700):
        keys = [f"{number} {i}" for i in range(3)]
        drawn[np.arange(3), mechanism.draw(BATCH, voters, keys, SystemEntropy())[:, 0]] += 1
    assert np.abs(drawn / 700 - batch_laws(mechanism, records, labels, queries)).max() < 0.13


def test_noise_is_that_of_each_queries_clique():
    """Also where balls are empty."""
    tape, queries = ZeroNoise(), np.array([[0], [1], [2], [40], [41], [60]])
    nobody = voters_of(np.zeros((0, 1)), np.zeros(0, dtype=int), queries)
    mechanism = RadiusNeighbours(radius=1 / 126, epsilon=0.3)
    answers = mechanism.draw(BATCH, nobody, list("abcdef"), tape)
    assert answers[:, 1].tolist() == [3, 3, 3, 2, 2, 1]
    assert sorted(draw[2:] for draw in tape.drawn) == [(LABEL_NOISE, n, CLASSES) for n in (1, 2, 3)]
    for _, scale, _, size, _ in tape.drawn:
        assert Fraction(size) / Fraction(scale) <= Fraction(0.3)  # rounded, but never below
        assert scale == pytest.approx(size / 0.3)


def test_one_charge_a_batch_and_none_past_the_cap(tmp_path):
    q, entropy = points(40, 1), SystemEntropy()
    answering = teacher(tmp_path, entropy, size=7)  # a size that is for other mechanisms
    first = answering.answer(Queries(np.vstack([q[:20], q[:3]])))
    assert (first.receipt.charged, first.receipt.left) == ({BATCH: 1}, {BATCH: 1})
    assert first.labels[20:].tolist() == first.labels[:3].tolist()
    assert 1 <= first.receipt.clique <= 20
    again = teacher(tmp_path, entropy).answer(Queries(q[:20]))  # also after a restart
    assert (again.receipt.charged, again.receipt.served) == ({BATCH: 0}, 20)
    assert again.receipt.clique == first.receipt.clique
    more = answering.answer(Queries(q[10:30]))  # 10 known; 10 new ones are the second batch
    assert (more.receipt.charged, more.receipt.left) == ({BATCH: 1}, {BATCH: 0})
    assert more.labels[:10].tolist() == first.labels[10:20].tolist()
    refused = answering.answer(Queries(q[25:]))
    assert refused.outcomes.tolist() == [Outcome.ANSWERED] * 5 + [Outcome.CAP_REACHED] * 10
    assert refused.labels[5:].tolist() == [-1] * 10
    assert refused.receipt.charged == {BATCH: 0}
    finding = audit(tmp_path / LEDGER)
    assert (finding.problems, finding.charged) == ([], {"0/batch": 2})
    assert finding.released == {"0/batch": 30}


@pytest.mark.parametrize(
    ("mechanism", "asked", "rule"),
    [
        (MECHANISM, MAX_QUERIES + 1, "in a batch"),
        (BatchKnn(k=4, records=60, epsilon=0.1), 5, r"mechanism\.conversion.*interactive"),
    ],
    ids=["too many", "a senseless grid"],
)
def test_a_batch_that_can_not_be_answered_is_refused_before_the_charge(
    tmp_path, mechanism, asked, rule
):
    with pytest.raises(InvalidInput, match=rule):
        teacher(tmp_path, ZeroNoise(), mechanism).answer(Queries(points(asked, 0)))
    assert Ledger(tmp_path / LEDGER).state.spent == {}


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
    """Each query's choice of a radius, enumerated for every neighbour."""
    queries, share = np.array([0, 3, 4, 9, 30, 60])[:, None], 1.0
    mechanism = knn(epsilon=2.0, conversion="interactive", candidate_accounting=accounting)
    radii = batch.candidate_radii(1, mechanism.k, 40, mechanism.candidates)
    sizes = clique_bounds(queries.astype(np.int8), np.full(6, radii[-1]), accounting)
    assert accounting == "queries" or 1 < sizes.max() < 6

    def laws(records):
        counts = [[(((records - q) ** 2).sum(axis=1) <= r).sum() for r in radii] for q in queries]
        losses = np.abs(np.array(counts) - mechanism.k)
        return np.array([choice(*pair) for pair in zip(losses, share / (2 * sizes), strict=True)])

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
