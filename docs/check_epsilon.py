"""A configuration's epsilon a second time, written from docs/privacy.md; numpy and scipy alone.

`labelwall plan --config FILE --json | python docs/check_epsilon.py` prints about three digits.
It bounds nothing: sums are truncated, orders are few.
"""

import json
import math
import sys

import numpy as np
from scipy.special import gammaln, logsumexp

ORDERS = [1.5, 1.75, *range(2, 17), *range(18, 33, 2), *range(36, 65, 4), 80, 96, 128, 192, 256]
RELEASES = {  # sections 3, 12, 13, 16, 17, 21: a curve, and the mechanism's fields that it needs
    "screen": ("screening", "k", "threshold", "sigma_screen"),
    "aggregate": ("argmax", "sigma_vote"),
    "histogram": ("gaussian", "neighbours", "sigma"),
    "score": ("gaussian", "sensitivity", "sigma"),
    "counts": ("gaussian", "tau", "sigma_vote"),
    "median": ("range", "epsilon"),
    "individual_budgets": ("zcdp", "rho"),
    "sum": ("gaussian", "sensitivity", "noise_multiplier"),  # in sensitivities: it is 1
}


def priced(name, mechanism):
    curve, *fields = RELEASES[name]
    known = {"k": mechanism.get("teachers"), **mechanism, "sensitivity": 1}
    p = [known[field] for field in fields]
    p = [2 * p[0] * 4096**2, p[1] * 4096] if name == "counts" else p  # votes in units of 1/4096
    return curve, *p, mechanism.get("sample_rate", 1.0)


def discrete_gaussian(sigma, reach):
    mass = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    return mass / mass.sum()


def renyi(alpha, p, other, gamma):
    """Divergence of p and its mixture with ``other``, the larger direction, worst column."""
    u = gamma * (np.divide(other, p, out=np.ones_like(p), where=p > 1e-290) - 1)
    worst = 0.0
    for t in (alpha, 1 - alpha):
        near = t * (t - 1) / 2 * u**2
        phi = np.where(np.abs(t * u) < 1e-4, near, np.expm1(t * np.log1p(u)) - t * u)
        worst = max(worst, np.nanmax((p * phi).sum(axis=0)))
    return math.log1p(worst) / (alpha - 1)


def screening(alpha, k, threshold, sigma, gamma):
    """Section 4: the bit's law with t votes and with t + 1, for all t."""
    reach, z = k + threshold + math.ceil(12 * sigma), threshold - np.arange(k)
    above = np.cumsum(discrete_gaussian(sigma, reach))  # above[i] = P(Z >= reach - i)
    laws = [np.stack([above[reach - z - i], above[reach + z + i - 1]]) for i in (1, 0)]
    return max(renyi(alpha, *laws, gamma), renyi(alpha, *laws[::-1], gamma))


def argmax(alpha, sigma, gamma):
    """Section 5: every contest x, y with both tie orders, along the diagonals x - y = d."""
    n = math.ceil(9 * sigma + 2 * alpha)
    z, worst, plain = np.arange(-n, n + 1), 0.0, discrete_gaussian(sigma, n)
    laws = [(plain, plain), (np.roll(plain, 1), np.roll(plain, -1))]  # of (u, v)
    below = [[np.concatenate([[0.0], np.cumsum(p)]) for p in pair] for pair in laws]
    for tie in (0, 1):  # of a and b: a wins it, or b does
        for d in range(-2 * n, 2 * n + 1):
            seen = []
            for (u, v), (below_u, below_v) in zip(laws, below, strict=True):
                a = np.cumsum((u * below_v[np.clip(z + d - tie + n + 1, 0, 2 * n + 1)])[::-1])
                b = np.cumsum((v * below_u[np.clip(z - d + tie + n, 0, 2 * n + 1)])[::-1])
                b = np.concatenate([[0.0], b])[np.clip(z - d + n + 1, 0, 2 * n + 1)]
                seen.append([a, b, below_u[n - z] * below_v[np.clip(n - z + d, 0, 2 * n + 1)]])
            worst = max(worst, renyi(alpha, *np.array(seen), gamma))
    return worst


def gaussian(alpha, square, sigma, gamma):
    """Section 6, at the next whole order."""
    if gamma == 1:
        return alpha * square / (2 * sigma**2)
    n, j = math.ceil(alpha), np.arange(math.ceil(alpha) + 1)
    terms = gammaln(n + 1) - gammaln(j + 1) - gammaln(n - j + 1) + j * math.log(gamma)
    terms += (n - j) * math.log1p(-gamma) + j * (j - 1) * square / (2 * sigma**2)
    return logsumexp(terms) / (n - 1)


def bounded_range(alpha, epsilon, gamma):
    """Section 17, at 1,000 places of the interval."""
    t = np.linspace(0, epsilon, 1002)[1:-1]
    high = np.expm1(epsilon - t) / np.expm1(epsilon)
    law = np.stack([high, 1 - high])
    return renyi(alpha, law, law * np.exp([t, t - epsilon]), gamma)


def composed(alpha, releases, delta, rough):
    """Section 6: epsilon by one order. ``rough``: an argmax costs 0.64 of its Gaussian bound."""
    curves = {"screening": screening, "gaussian": gaussian, "range": bounded_range}
    curves["argmax"] = (lambda a, s, g: 0.64 * gaussian(a, 2, s, g)) if rough else argmax
    curves["zcdp"] = lambda a, rho, _: a * rho
    total = sum(cap * curves[curve](alpha, *p) for cap, (curve, *p) in releases)
    return total + math.log1p(-1 / alpha) - math.log(delta * alpha) / (alpha - 1)


def losses(cap, curve, *p):
    """(copies, masses without the record, losses with it) of one release."""
    square, (sigma, gamma) = {"screening": 1, "argmax": 2}.get(curve) or p[0], p[-2:]
    if square > 3:  # section 19
        mu = math.sqrt(square / (sigma**2 - math.log(4.1e12 * cap * square) / (2 * math.pi**2)))
        x = np.linspace(-9, 9 + mu, 1 << 14)
        mass, log_ratio = np.exp(-(x**2) / 2), mu * (x - mu / 2)
    else:  # section 6: sign vectors
        single = mass = discrete_gaussian(sigma, math.ceil(10 * sigma))
        for _ in range(square - 1):
            mass = np.convolve(mass, single)
        w = np.arange(len(mass)) - len(mass) // 2
        log_ratio = (2 * w - square) / (2 * sigma**2)
    return cap, mass / mass.sum(), np.log1p(gamma * np.expm1(log_ratio))


def by_distribution(releases, delta, points=1 << 18):
    """The sum of all copies' losses: spread over a grid, mean kept; one Fourier transform."""
    copies, epsilons = [losses(cap, *fields) for cap, fields in releases], []
    for sign in (1, -1):
        laws = [(n, q * np.exp(s) if sign > 0 else q, sign * s) for n, q, s in copies]
        spread = sum(n * (p @ s**2 - (p @ s) ** 2) for n, p, s in laws)
        step = 2 * (12 * math.sqrt(spread) + max(np.abs(s).max() for _, _, s in laws)) / points
        transform, total = 1.0, step * (np.arange(points) - points // 2)
        for n, p, s in laws:
            place = (s - p @ s) / step  # about the mean, so that the sum stays on the grid
            low = np.floor(place).astype(int)
            ends, share = np.concatenate([low, low + 1]) % points, place - low
            grid = np.bincount(ends, np.concatenate([p * (1 - share), p * share]), points)
            transform, total = transform * np.fft.rfft(grid) ** n, total + n * (p @ s)
        mass = np.fft.fftshift(np.fft.irfft(transform, points))
        above = np.cumsum(mass[::-1])[::-1]  # mass of larger losses, under both laws
        other = np.cumsum((mass * np.exp(-np.maximum(total, -99)))[::-1])[::-1]
        below = above - np.exp(np.clip(total, 0, 99)) * other <= delta
        epsilons.append(total[below & (total > 0)][0])
    return max(epsilons)


plan = json.load(sys.stdin)
delta, entries = plan["delta"], [*plan["rounds"], *plan["scores"]]
slots = {entry["slot"]: entry for entry in entries}.values()
used = [(cap, priced(name, r["mechanism"])) for r in slots for name, cap in r["caps"].items()]
best = min(ORDERS, key=lambda alpha: composed(alpha, used, delta, rough=True))
epsilons = [composed(best, used, delta, rough=False)]
if all(curve in ("screening", "argmax", "gaussian") for _, (curve, *_) in used):
    epsilons.append(by_distribution(used, delta))
print(f"{min(epsilons):.4f}")
