"""Nothing repeats on the release path, everything on the test tape. A run of this file fails
faithful draws with probability below 1e-7."""

import hashlib
import inspect
import json
import math
import os
import platform
import subprocess
import sys
from contextlib import nullcontext
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binom

from labelwall.teacher.noise import sampler
from labelwall.teacher.noise.entropy import SystemEntropy, inclusion_bound
from labelwall.wall.errors import InvalidInput
from tests.programs import REPOSITORY
from tests.programs.snapshot import DRAWS
from tests.seeded_noise import SeededNoise
from tests.teacher.noise.oracles import surprise

pytestmark = pytest.mark.fresh_noise
SOURCES, NAMES = [SystemEntropy(), SeededNoise(3)], ["system", "tape"]
WRONG = [0.0, -1.0, math.nan, math.inf, np.nextafter(2.0**50, math.inf)]
IDS = np.arange(40_000, dtype=np.int64).reshape(20, 2000)
KEYS = [hashlib.sha256(bytes([i])).hexdigest() for i in range(20)]


def _law(log_mass, reach):
    """Probabilities of -reach..reach, each end with its tail, where z has exp(log_mass(z))."""
    z = np.arange(-300, 301)
    mass = np.exp(log_mass(z))
    return np.bincount(np.clip(z, -reach, reach) + reach, mass / mass.sum())


def _surprise(drawn, law):
    reach = len(law) // 2
    return surprise(np.clip(drawn, -reach, reach) + reach, law)


def _gaussian(sigma):
    return _law(lambda z: -0.5 * (z / sigma) ** 2, math.ceil(5 * sigma))


LAWS = {
    "gaussian 0.6": ("discrete_gaussian", 0.6, _gaussian(0.6)),
    "gaussian 2.5": ("discrete_gaussian", 2.5, _gaussian(2.5)),
    "laplace 2.5": ("discrete_laplace", 2.5, _law(lambda z: -np.abs(z) / 2.5, 10)),
}


@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
@pytest.mark.parametrize("name", LAWS)
def test_noise_has_the_law_that_is_accounted(source, name):
    method, scale, law = LAWS[name]
    drawn = getattr(source, method)(scale, [str(i) for i in range(4000)], "aggregate", 10)
    assert drawn.dtype == np.int64
    assert drawn.shape == (4000, 10)
    assert _surprise(drawn, law) > 1e-9  # which faithful draws miss so seldom
    # 45 pairs of columns, about normal: seven deviations are passed with probability 45 * 2.6e-12
    assert abs(np.corrcoef(drawn.T) - np.eye(10)).max() < 7 / np.sqrt(4000)


def test_another_scale_or_rounded_continuous_noise_has_another_law():
    keys, tape = [str(i) for i in range(4000)], SeededNoise(3)
    for sigma in (2.33, 2.68):  # 7% less, 7% more
        assert (
            _surprise(tape.discrete_gaussian(sigma, keys, "aggregate", 10), _gaussian(2.5)) < 1e-9
        )
    rounded = np.rint(np.random.default_rng(0).normal(0, 0.6, 40_000)).astype(np.int64)
    assert _surprise(rounded, _gaussian(0.6)) < 1e-9


@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
@pytest.mark.parametrize("gamma", [0.02, 0.15, 0.9])
def test_inclusion_has_its_probability(source, gamma):
    bits = source.inclusion(gamma, KEYS, "screen", IDS)
    assert bits.dtype == bool
    assert bits.shape == IDS.shape
    deviation = np.sqrt(gamma * (1 - gamma) / bits.size)
    # Missed with probability at most 3.1e-9, by the binomial law.
    assert abs(bits.mean() - gamma) < 6 * deviation
    # Records that two queries share.
    shared = (bits.astype(np.int64) @ bits.T)[np.triu_indices(len(bits), k=1)]
    law = binom(bits.shape[1], gamma**2)  # where few are shared it is far from normal
    # Two tails of 190 pairs: 4e-9.
    assert np.minimum(law.cdf(shared), law.sf(shared - 1)).min() > 1e-11


@pytest.mark.parametrize("gamma", [1e-9, 0.03, 0.15, 1 / 3, 0.2, np.nextafter(1.0, 0.0)])
def test_inclusion_is_rounded_down_never_up(gamma):
    bound = Fraction(inclusion_bound(gamma), 2**32)
    assert Fraction(gamma) - Fraction(1, 2**32) < bound <= Fraction(gamma)


@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
def test_the_ends_everybody_is_included_and_no_queries_draw_nothing(source):
    assert inclusion_bound(1.0) == 2**32
    assert source.inclusion(1.0, KEYS, "screen", IDS).all()
    assert source.discrete_gaussian(2.0, [], "screen", 3).shape == (0, 3)
    assert source.discrete_laplace(2.0, [], "screen", 3).shape == (0, 3)
    assert source.inclusion(0.5, [], "screen", np.zeros((0, 7), dtype=np.int64)).shape == (0, 7)


@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
@pytest.mark.parametrize(
    ("method", "name", "wrong"),
    [
        ("inclusion", "sample_rate", [0.0, -0.1, 1.0000001, math.nan]),
        ("discrete_gaussian", "sigma", WRONG),
        ("discrete_laplace", "scale", WRONG),
    ],
)
def test_a_wrong_argument_is_refused(source, method, name, wrong):
    last = IDS if method == "inclusion" else 1
    for value in wrong:
        with pytest.raises(InvalidInput, match=name):
            getattr(source, method)(value, KEYS, "screen", last)
    with pytest.raises(InvalidInput, match="keys"):
        source.inclusion(0.5, KEYS[:3], "screen", IDS)


@pytest.fixture(scope="module")
def copies():
    """What two copies of one process draw, by the draw's name; one process makes all copies."""
    code = "from tests.programs import snapshot; [snapshot.main(name) for name in snapshot.DRAWS]"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return dict(zip(DRAWS, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the process number is fixed by x86-64 code"
)
@pytest.mark.parametrize("name", DRAWS)
def test_copies_of_a_process_draw_different_noise(copies, name):
    """Equal by chance with probability below 1e-35; those of a generator with state are equal."""
    first, second = copies[name]
    assert (first == second) == (name == "opendp")


def _calls(source=SystemEntropy):
    return [
        lambda: source().inclusion(0.5, KEYS, "screen", IDS),
        lambda: source().discrete_gaussian(25.0, KEYS, "aggregate", 10),
        lambda: source().discrete_gaussian(1e6, KEYS, "aggregate", 10),
        lambda: source().discrete_laplace(3.0, KEYS, "aggregate", 10),
        lambda: source().choose(
            np.zeros((20, 50), dtype=np.int64), [Fraction(1)] * 20, KEYS, "label"
        ),
    ]


@pytest.fixture
def keys_used(monkeypatch):
    """The keys of AES, in order."""
    used, real = [], sampler.algorithms.AES

    def witness(key):
        used.append(key)
        return real(key)

    monkeypatch.setattr(sampler.algorithms, "AES", witness)
    return used


def test_every_call_has_a_fresh_key_of_256_bits(keys_used):
    for call in _calls() + _calls():
        before = len(keys_used)
        call()
        assert len(keys_used) == before + 1
    assert len(set(keys_used)) == len(keys_used) == 10
    assert {len(key) for key in keys_used} == {32}


def _device(missing):
    """The system's device, whose bytes are all 0 and too few by ``missing``."""
    return lambda *_, **__: nullcontext(SimpleNamespace(read=lambda count: bytes(count - missing)))


def _refuse(*_, **__):
    raise OSError("no entropy")


def test_a_key_depends_on_both_ways_to_the_system(monkeypatch):
    """Either of them may repeat itself."""
    asked = []
    monkeypatch.setattr(os, "urandom", lambda count: asked.append(count) or bytes(count))
    first, second = sampler.fresh_key(), sampler.fresh_key()
    assert asked == [32, 32]
    assert first != second
    monkeypatch.undo()
    monkeypatch.setattr("builtins.open", _device(missing=0))
    assert sampler.fresh_key() != sampler.fresh_key()


@pytest.mark.parametrize(
    ("way", "fault"),
    [("os.urandom", _refuse), ("builtins.open", _refuse), ("builtins.open", _device(missing=1))],
    ids=["urandom", "no device", "too few"],
)
def test_without_entropy_nothing_is_drawn(monkeypatch, keys_used, way, fault):
    monkeypatch.setattr(way, fault)
    for call in _calls():
        with pytest.raises(OSError, match=r"entropy|bytes"):
            call()
    assert keys_used == []


def test_the_release_path_can_not_be_seeded_and_prints_no_secret():
    assert SystemEntropy().unsafe is False
    assert list(inspect.signature(SystemEntropy).parameters) == []
    assert not vars(SystemEntropy())  # no state
    assert "12345" not in repr(SeededNoise(12345))


def test_the_tape_repeats_by_key_release_and_record():
    one, two, other = SeededNoise(1), SeededNoise(1), SeededNoise(2)
    assert one.unsafe is True
    bits = one.inclusion(0.5, KEYS, "screen", IDS)
    assert (bits == two.inclusion(0.5, KEYS, "screen", IDS)).all()
    assert (bits != other.inclusion(0.5, KEYS, "screen", IDS)).any()
    assert (bits != one.inclusion(0.5, KEYS, "aggregate", IDS)).any()
    order = np.random.default_rng(0).permutation(IDS.shape[1])
    assert (one.inclusion(0.5, KEYS, "screen", IDS[:, order]) == bits[:, order]).all()
    assert (one.inclusion(0.5, KEYS[5:6], "screen", IDS[5:6]) == bits[5:6]).all()
    for draw in (one.discrete_gaussian, one.discrete_laplace):
        for scale in (0.5, 1e6):
            drawn = draw(scale, KEYS, "aggregate", 10)
            assert (drawn[7:9, :4] == draw(scale, KEYS[7:9], "aggregate", 4)).all()
            assert (drawn != draw(scale, KEYS, "screen", 10)).any()
