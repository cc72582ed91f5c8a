"""Exact draws from the discrete Gaussian and Laplace laws (docs/privacy.md, section 18).

A draw is a function of uniform bits and reads as many as it needs. Tables contain certified bounds
of 63 bits. A draw that falls between a lower bound and an upper one reads 64 more bits and computes
bounds of that precision, until it is decided. No step uses a float. How long a draw takes depends
on its outcome: timing is outside the guarantee. w(z) = exp(-rate z^p) below, p = 2 with rate
1/(2 sigma^2) or p = 1 with rate 1/scale; G is the distribution function of a table.

**Scales below MAX_TABLE_SCALE.** Let w(0) count half, M have the law proportional to w on 0, 1, 2,
..., and a fair sign be independent of M. Then the signed M has P(z) proportional to
exp(-rate |z|^p) on all integers: z and -z have half of w(|z|) each, and zero has its half once. M
is inverse sampling: for a uniform real V in [0, 1), M = the number of z with G(z) <= V has
P(M <= z) = P(V < G(z)) = G(z). The first 63 bits v of V say 2^63 V in [v, v + 1). With bounds
low(z) <= 2^63 G(z) <= high(z): v < low(z) proves V < G(z), v >= high(z) proves V >= G(z). The place
is certain if high(M - 1) <= v < low(M). Otherwise (probability about 2^-63 for each place, and the
tail) more bits are read, so M is a function of V, whichever bounds were used.

**Larger scales.** k with s = scale / 2^k in [32, 64) and the whole number b0 = ceil(s). A proposal:
B with weights exp(-rate0 B^p) on 0, 1, 2, ..., rate0 that of the scale b0, from its table (zero
counts whole); R uniform on 0, ..., 2^k - 1; M = 2^k B + R. It is kept with probability exp(-x),
x = rate M^p - rate0 B^p. Since M >= 2^k B and 2^k b0 >= scale, x >= 0: a probability. So kept M
have weights exp(-rate0 B^p) exp(-x) = exp(-rate M^p), each M from one (B, R). A fair sign, and -0
is rejected: every z has weight exp(-rate |z|^p) / 2. Rejection leaves the law of what is kept, and
at least about 32/33 is.
"""

import math
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

GAUSSIAN, LAPLACE = 2, 1  # powers of z in the exponent
MAX_TABLE_SCALE = 64  # scales below it have their own tables
MAX_PLACE = 1 << 17  # larger places count as this one; less than 2^-2900 lies beyond
BITS = 63  # of a word that select a place or decide a coin; one is the sign
# Fixed point: bits after the point of z / 2^k, of its power, of a rate.
FRACTION, POWER_BITS, RATE_BITS = 16, 20, 34
CELL_BITS = 12  # the coins' table has a place for each 2^-CELL_BITS of x below 1
GUARD = 64  # bits of inner precision of bounds beyond those asked for
TAIL_BITS = 8  # at most 2^(1 - bits - TAIL_BITS) is left out of a table
KEY_BYTES = 32
WORD = 64  # bits of a word


class Words(Protocol):
    """Uniform independent words, each handed out once. A draw takes its words from one lane."""

    def take(self, lanes: np.ndarray) -> np.ndarray:
        """The next word of each lane: uint64 [m], for int64 [m] without repetitions."""
        ...


class Stream:
    """The system's words: one stream under a fresh key, whatever the lanes."""

    def __init__(self) -> None:
        self._encryptor = Cipher(algorithms.AES(fresh_key()), modes.CTR(bytes(16))).encryptor()

    def take(self, lanes: np.ndarray) -> np.ndarray:
        """The next words: uint64 [m] for int64 [m]."""
        return np.frombuffer(self.read(len(lanes) * WORD // 8), dtype="<u8")

    def read(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        return self._encryptor.update(bytes(count))


def fresh_key() -> bytes:
    """256 bits of the operating system: ``os.urandom`` xor a read of /dev/urandom.

    Since glibc 2.41 the former may be served from memory of the process (vDSO getrandom), which a
    snapshot may restore; a read of the device always enters the kernel. The former waits until the
    kernel's generator is seeded; the latter may not. Raises OSError where either fails.
    """
    first = os.urandom(KEY_BYTES)
    with open("/dev/urandom", "rb", buffering=0) as device:
        second = device.read(KEY_BYTES)
    if len(second) != KEY_BYTES:
        raise OSError(f"/dev/urandom gave {len(second)} bytes of {KEY_BYTES}")
    return bytes(a ^ b for a, b in zip(first, second, strict=True))


def uniform_below(words: Words, lane: int) -> Callable[[int], int]:
    """A source of integers uniform among 0, ..., n - 1, n >= 1, from whole words of ``lane``.

    Exact: as many bits as n - 1 has, again and again until they are below n.
    """
    here = np.array([lane])

    def below(n: int) -> int:
        bits = (n - 1).bit_length()
        while True:
            value = 0
            for _ in range(-(-bits // WORD)):
                value = value << WORD | int(words.take(here)[0])
            value >>= -bits % WORD
            if value < n:
                return value

    return below


@dataclass(frozen=True)
class Law:
    """Magnitudes z = 0, 1, 2, ... with probabilities proportional to exp(-rate z^power).

    ``power``: 2 (Gaussian, rate 1/(2 sigma^2)) or 1 (Laplace, rate 1/scale). ``rate``: positive.
    ``two_sided``: zero counts half, as it must where a fair sign follows: then the signed number
    has the symmetric law on all integers.
    """

    power: int
    rate: Fraction
    two_sided: bool


@dataclass(frozen=True)
class Table:
    """Places of ``law``: a number v < 2^63 certainly has place z if above[z] <= v < lows[z].

    ``lows``: uint64 [n], rising. ``above``: uint64 [n + 1], upper bounds of the place before; the
    last is 2^63, since nothing is certain in the tail.
    """

    law: Law
    lows: np.ndarray
    above: np.ndarray


@dataclass(frozen=True)
class Recipe:
    """How to draw from ``law``: from its own table, or in blocks of 2^shift of ``table``'s places.

    ``rate``: 2^RATE_BITS times the law's rate for z / 2^shift, rounded down. ``table_rate``:
    2^(POWER_BITS + RATE_BITS) times the table's rate, rounded up.
    """

    law: Law
    table: Table
    shift: int
    rate: int
    table_rate: int


@lru_cache(maxsize=256)
def recipe(power: int, scale: float) -> Recipe:
    """How to draw with sigma (GAUSSIAN) or scale (LAPLACE) in (0, MAX_SCALE].

    A public function of its arguments.
    """
    mantissa, exponent = math.frexp(scale)
    # scale / 2^shift lies in [MAX_TABLE_SCALE / 2, MAX_TABLE_SCALE).
    shift = exponent - MAX_TABLE_SCALE.bit_length() + 1
    law = Law(power, _rate(power, Fraction(scale)), two_sided=shift <= 0)
    if shift <= 0:
        return Recipe(law, table_of(law), 0, 0, 0)
    # Exact, since MAX_TABLE_SCALE is a power of two.
    proposal_scale = math.ceil(mantissa * MAX_TABLE_SCALE)
    proposal = table_of(Law(power, _rate(power, Fraction(proposal_scale)), two_sided=False))
    rate = math.floor(law.rate * 2 ** (power * shift + RATE_BITS))
    table_rate = math.ceil(proposal.law.rate * 2 ** (POWER_BITS + RATE_BITS))
    return Recipe(law, proposal, shift, rate, table_rate)


def draw(recipe: Recipe, words: Words, count: int) -> np.ndarray:
    """Independent integers of probability proportional to exp(-rate |z|^power), int64 [count].

    Integer i takes its words from lane i.
    """
    drawn = np.zeros(count, dtype=np.int64)
    lanes = np.arange(count)
    while len(lanes):
        proposed, kept = _proposals(recipe, words, lanes)
        drawn[lanes[kept]] = proposed[kept]
        lanes = lanes[~kept]
    return drawn


def _proposals(recipe: Recipe, words: Words, lanes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A signed integer for each lane, int64 [m], and whether it is accepted, bool [m]."""
    places, negative = _places(recipe.table, words, lanes)
    if not recipe.shift:
        return np.where(negative, -places, places), np.ones(len(lanes), dtype=bool)
    offsets = (words.take(lanes) >> np.uint64(WORD - recipe.shift)).astype(np.int64)
    magnitudes = (places << recipe.shift) | offsets
    kept = _coins(recipe, places, magnitudes, words, lanes)
    kept &= ~(negative & (magnitudes == 0))  # or zero would be drawn twice as often
    return np.where(negative, -magnitudes, magnitudes), kept


def _places(table: Table, words: Words, lanes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A place of the table for each lane, int64 [m], and a fair bit, bool [m]."""
    taken = words.take(lanes)
    values = taken >> np.uint64(1)
    places = np.searchsorted(table.lows, values, side="right")
    for i in np.flatnonzero(values < table.above[places]).tolist():
        places[i] = min(MAX_PLACE, _refined(table.law, int(values[i]), words, lanes[i : i + 1]))
    return places, (taken & np.uint64(1)).astype(bool)


def _refined(law: Law, value: int, words: Words, lane: np.ndarray) -> int:
    """The place of the number that begins with BITS bits ``value``; next come the lane's words."""
    bits = BITS
    while True:
        value, bits = value << WORD | int(words.take(lane)[0]), bits + WORD
        lows, highs = cumulative(law, bits)
        place = bisect_right(lows, value)
        if place < len(lows) and (place == 0 or value >= highs[place - 1]):
            return place


def _coins(
    recipe: Recipe, places: np.ndarray, magnitudes: np.ndarray, words: Words, lanes: np.ndarray
) -> np.ndarray:
    """Coins of probability exp(-x), bool [m].

    x = rate magnitude^power - (table's rate) place^power, at least 0.
    """
    lower, upper = coin_table()
    cells = coin_cells(recipe, places, magnitudes)
    coins = words.take(lanes) >> np.uint64(1)
    kept = coins < lower[cells]
    for i in np.flatnonzero(~kept & (coins < upper[cells])).tolist():
        place, magnitude, coin = int(places[i]), int(magnitudes[i]), int(coins[i])
        kept[i] = _exact_coin(recipe, place, magnitude, coin, words, lanes[i : i + 1])
    return kept


def coin_cells(recipe: Recipe, places: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
    """Cells of the coins' table that bound exp(-x): int64 [m] in 0, ..., 2^CELL_BITS.

    The last cell has no bound; in the others, x lies in [cell, cell + 2) 2^-CELL_BITS. *Proof.*
    With k = shift, y = M/2^k, r = rate 2^(pk) and f(y) = y^p: x = r f(y) - rate0 f(B). Let Y =
    floor(2^16 y), F = floor(2^20 (2^-16 Y)^p), g = floor(2^34 r), d = ceil(2^54 rate0), and E = F g
    - B^p d, all int64. Then E <= 2^54 x, since F and g were rounded down and d up. In the other
    direction, for p = 2: B < 2^10 inside the table, so Y < 2^26, F < 2^40, r <= 2^-11, g <= 2^23,
    and 2^20 y^2 < F + 1 + (2Y + 1)/2^12 < F + 2^15 + 2, hence 2^54 x - E < F + (2^15 + 2)(g + 1) +
    B^2 < 2^40 + 2^39 + 2^20 < 2^42. For p = 1: B < 2^12, Y < 2^28, F < 2^32, r <= 2^-5, g <= 2^29,
    and 2^20 y < F + 16, hence 2^54 x - E < F + 16 (g + 1) + B < 2^34 + 2^13 + 16 < 2^42. So cell =
    floor(max(E, 0)/2^42). The largest products, F g and B^p d, are below 2^63: tests compute both
    for the tables there are.
    """
    power, last = recipe.law.power, 1 << CELL_BITS
    scaled = _shifted(magnitudes, FRACTION - recipe.shift)
    powers = _shifted(scaled**power, POWER_BITS - power * FRACTION)
    excess = powers * recipe.rate - places**power * recipe.table_rate
    cells = np.clip(excess >> (POWER_BITS + RATE_BITS - CELL_BITS), 0, last)
    # Beyond the table the excess may overflow int64.
    cells[places >= len(recipe.table.lows)] = last
    return cells


def _exact_coin(
    recipe: Recipe, place: int, magnitude: int, value: int, words: Words, lane: np.ndarray
) -> bool:
    """Whether the number that begins with BITS bits ``value`` is below exp(-x).

    Its next bits are the lane's words.
    """
    power, bits = recipe.law.power, BITS
    x = recipe.law.rate * magnitude**power - recipe.table.law.rate * place**power
    while True:
        low, high = exp_bounds(x, bits + GUARD)
        if (value + 1) << GUARD <= low:
            return True
        if value << GUARD >= high:
            return False
        value, bits = value << WORD | int(words.take(lane)[0]), bits + WORD


def _shifted(values: np.ndarray, places: int) -> np.ndarray:
    """floor(values 2^places), int64."""
    return values << places if places >= 0 else values >> -places


def _rate(power: int, scale: Fraction) -> Fraction:
    return 1 / (2 * scale**2) if power == GAUSSIAN else 1 / scale


@lru_cache(maxsize=256)
def table_of(law: Law) -> Table:
    """Bounds of BITS bits. A public function of the law."""
    lows, highs = cumulative(law, BITS)
    return Table(law, _words(lows), _words([0, *highs[:-1], 1 << BITS]))


@lru_cache(maxsize=1)
def coin_table() -> tuple[np.ndarray, np.ndarray]:
    """Bounds of 2^BITS exp(-x) for all x of a cell: (lower, upper), uint64 [2^CELL_BITS + 1]."""
    law = Law(LAPLACE, Fraction(1, 1 << CELL_BITS), two_sided=False)
    bounds = list(islice(weights(law, BITS + GUARD), (1 << CELL_BITS) + 2))
    lower = [low >> GUARD for low, _, _ in bounds[2:]]
    upper = [-(-high >> GUARD) for _, high, _ in bounds[:-2]]
    return _words([*lower, 0]), _words([*upper, 1 << BITS])


def _words(values: list[int]) -> np.ndarray:
    words = np.array(values, dtype=np.uint64)
    words.flags.writeable = False
    return words


# Certified bounds in integers: every function below returns ``low <= 2^bits y <= high`` for a real
# y. Each step rounds lower bounds down and upper bounds up, so they are valid at any distance;
# GUARD more bits inside keep them one or two units apart. No float is used.


def exp_bounds(x: Fraction, bits: int) -> tuple[int, int]:
    """Bounds of 2^bits exp(-x), x >= 0; at most 2^bits.

    exp(-x) = exp(-y)^(2^h) with y = x / 2^h < 1. The partial sums of exp(-y) alternate around it
    and their terms fall, so the last term added bounds the remainder.
    """
    if x >= bits:
        return 0, 1  # exp(-x) < 2^-bits
    unit = 1 << bits
    halvings = int(x).bit_length()
    y = (x.numerator << bits) // (x.denominator << halvings)  # 2^bits y lies in [y, y + 1)
    low = high = low_term = high_term = unit
    n = 0
    while high_term > 1:
        n += 1
        low_term = (low_term * y >> bits) // n
        high_term = _up(_up(high_term * (y + 1), unit), n)
        if n % 2:
            low, high = low - high_term, high - low_term
        else:
            low, high = low + low_term, high + high_term
    low, high = max(0, low - high_term), min(unit, high + high_term)
    for _ in range(halvings):
        low, high = low * low >> bits, _up(high * high, unit)
    return low, high


def weights(law: Law, bits: int) -> Iterator[tuple[int, int, int]]:
    """Bounds of 2^bits w(z) for z = 0, 1, ..., and an upper bound of 2^bits w(z + 1) / w(z).

    w(z) = exp(-rate z^power). w(z + 1) = w(z) r(z) with r(0) = exp(-rate), and r(z + 1) is
    r(z) exp(-2 rate) for power 2, r(z) for power 1.
    """
    unit = 1 << bits
    low_ratio, high_ratio = exp_bounds(law.rate, bits)
    low_step, high_step = exp_bounds(2 * law.rate, bits) if law.power == 2 else (unit, unit)
    low = high = unit
    while True:
        yield low, high, high_ratio
        low, high = low * low_ratio >> bits, _up(high * high_ratio, unit)
        low_ratio, high_ratio = low_ratio * low_step >> bits, _up(high_ratio * high_step, unit)


def cumulative(law: Law, bits: int) -> tuple[list[int], list[int]]:
    """Bounds of 2^bits G(z), G(z) = P(magnitude <= z), for z = 0, 1, ...: (lows, highs).

    The last place leaves out at most 2^(1 - bits - TAIL_BITS). Both lists rise, and no entry is
    above 2^bits. Ratios fall, so the weights from z on sum to at most w(z) / (1 - r(z)).
    """
    unit = 1 << (bits + GUARD)
    max_tail = 1 << (GUARD - TAIL_BITS)
    low = high = tail = 0
    sums: list[tuple[int, int]] = []
    for low_weight, high_weight, high_ratio in weights(law, bits + GUARD):
        if sums and high_weight <= max_tail:
            tail = _up(high_weight * unit, unit - high_ratio)
            if tail <= max_tail:
                break
        halved = 1 if law.two_sided and not sums else 0
        low += low_weight >> halved
        high += high_weight >> halved
        sums.append((low, high))
    lows = [(total << bits) // (high + tail) for total, _ in sums]
    highs = [min(1 << bits, _up(total << bits, low)) for _, total in sums]
    return lows, highs


def _up(numerator: int, denominator: int) -> int:
    """The quotient, rounded up."""
    return -(-numerator // denominator)
