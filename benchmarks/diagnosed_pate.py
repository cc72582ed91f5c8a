"""NOT RELEASABLE: the data-dependent cost of PATE's labels at their votes, for the custodian alone.

The papers' epsilons are of this kind (Papernot et al. 2017, Theorem 3; 2018, Theorem 6): where the
classifiers agree, a label says little about any of them. How far they agree is private, and so is
the epsilon. The formulas are the papers', for continuous noise; the teacher draws discrete noise,
and its certificates never come from here. Nothing on the path of an answer imports this file.
"""

import numpy as np
from diagnosed_screening import Diagnosis, screening_terms
from scipy.special import log_ndtr, logsumexp

from labelwall.teacher.accounting.conversion import Conversion, epsilon_from_rdp
from labelwall.teacher.accounting.curves import ORDERS
from labelwall.wall.errors import InvalidInput


def diagnose_gnmax(
    votes: np.ndarray, *, sigma: float, delta: float, conversion: Conversion = "canonne"
) -> Diagnosis:
    """Data-dependent epsilon of a GNMAX label for each row of ``votes``, int64 [n, n_classes]."""
    rdp = gnmax_terms(ORDERS, votes, sigma).sum(axis=0)
    return _diagnosis(rdp, f"{len(votes)} GNMAX labels", delta, conversion)


def diagnose_lnmax(
    votes: np.ndarray, *, scale: float, delta: float, conversion: Conversion = "canonne"
) -> Diagnosis:
    """Data-dependent epsilon of a LNMAX label for each row of ``votes``, int64 [n, n_classes]."""
    rdp = lnmax_terms(ORDERS, votes, scale).sum(axis=0)
    return _diagnosis(rdp, f"{len(votes)} LNMAX labels", delta, conversion)


def diagnose_confident_gnmax(
    votes: np.ndarray,
    answered: np.ndarray,
    *,
    teachers: int,
    threshold: int,
    sigma_screen: float,
    sigma_vote: float,
    delta: float,
    conversion: Conversion = "canonne",
) -> Diagnosis:
    """Data-dependent epsilon of a screening for each query and a label for each answered one.

    ``votes``: int64 [n_queries, n_classes]; ``answered``: bool [n_queries]. Screening:
    ``screening_terms``, exact for the discrete noise.
    """
    plurality, counts = np.unique(votes.max(axis=1), return_counts=True)
    screening = screening_terms(
        ORDERS, plurality, max_votes=teachers, threshold=threshold, sigma=sigma_screen
    )
    rdp = counts @ screening + gnmax_terms(ORDERS, votes[answered], sigma_vote).sum(axis=0)
    releases = f"{len(votes)} screenings and {answered.sum()} GNMAX labels"
    return _diagnosis(rdp, releases, delta, conversion)


def gnmax_terms(orders: np.ndarray, votes: np.ndarray, sigma: float) -> np.ndarray:
    """RDP of one GNMAX label at each row's votes (int64 [n, c]), float64 [n, n_orders].

    At most orders / sigma^2.
    """
    return gnmax_rdp(orders, log_flip_gaussian(votes, sigma), sigma)


def log_flip_gaussian(votes: np.ndarray, sigma: float) -> np.ndarray:
    """log q, q an upper bound of P(another class than the plurality wins).

    float64 [n] for ``votes`` int64 [n, c]. The union bound over the other classes,
    sum_j P(N(0, 2 sigma^2) >= n_max - n_j) (Papernot et al. 2018, Proposition 7), and never above
    1 - 1/c, since no class wins more often than the plurality.
    """
    union = logsumexp(log_ndtr(-_gaps(votes) / (np.sqrt(2) * sigma)), axis=1)
    return np.minimum(union, np.log1p(-1 / votes.shape[1]))


def gnmax_rdp(orders: np.ndarray, log_q: np.ndarray, sigma: float) -> np.ndarray:
    """Papernot et al. 2018, Theorem 6, for log q float64 [n]: float64 [n, n_orders].

    With orders mu2 = sigma sqrt(log 1/q) and mu1 = mu2 + 1 (Proposition 10) and
    eps_i = mu_i / sigma^2, for order <= mu1:
    (order - 1) D = log((1 - q) A^(order - 1) + q B^(order - 1)),
    A = (1 - q) / (1 - (q e^eps2)^(1 - 1/mu2)), B = e^eps1 q^(-1/(mu1 - 1)), provided
    q <= e^((mu2 - 1) eps2) (mu1/(mu1 - 1) mu2/(mu2 - 1))^(-mu2).
    Where the theorem does not apply: orders / sigma^2.
    """
    dependent, usable = theorem_6(orders, log_q, sigma)
    independent = orders[np.newaxis, :] / sigma**2
    return np.where(usable, np.minimum(dependent, independent), independent)


def theorem_6(orders: np.ndarray, log_q: np.ndarray, sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """(the theorem's bound, whether its conditions hold): float64 and bool [n, n_orders]."""
    order, log_q = orders[np.newaxis, :], log_q[:, np.newaxis]
    mu2 = sigma * np.sqrt(-log_q)
    usable = mu2 > 1 + 1e-9
    # Placeholders where the theorem does not apply, and where q = 0.
    mu2 = np.where(usable, mu2, 2.0)
    log_q = np.where(np.isfinite(log_q), log_q, -1e30)
    mu1 = mu2 + 1
    eps1, eps2 = mu1 / sigma**2, mu2 / sigma**2
    usable &= log_q <= (mu2 - 1) * eps2 - mu2 * (np.log(mu1 / (mu1 - 1)) + np.log(mu2 / (mu2 - 1)))
    usable &= log_q + eps2 < 0
    log_stay = np.log1p(-np.exp(log_q))
    inner = np.where(usable, (log_q + eps2) * (1 - 1 / mu2), -1.0)
    log_a = (order - 1) * (log_stay - np.log(-np.expm1(inner)))
    log_b = (order - 1) * (eps1 - log_q / (mu1 - 1))
    return np.logaddexp(log_stay + log_a, log_q + log_b) / (order - 1), usable & (order <= mu1)


def lnmax_terms(orders: np.ndarray, votes: np.ndarray, scale: float) -> np.ndarray:
    """RDP of one LNMAX label at each row's votes (int64 [n, c]), float64 [n, n_orders].

    With epsilon = 2 / scale, the least of epsilon, order epsilon^2 / 2 and Theorem 3 of Papernot et
    al. 2017: log((1 - q) ((1 - q) / (1 - e^epsilon q))^(order - 1) + q e^(epsilon
    (order - 1))) / (order - 1), for q below (e^epsilon - 1) / (e^(2 epsilon) - 1), q by Lemma 4's
    union bound sum_j (2 + g_j) e^(-g_j) / 4, g_j = (n_max - n_j) / scale.
    """
    epsilon, less = 2.0 / scale, orders[np.newaxis, :] - 1
    gaps = _gaps(votes) / scale
    union = logsumexp(np.log(2 + gaps) - np.log(4) - gaps, axis=1)
    log_q = np.minimum(union, np.log1p(-1 / votes.shape[1]))[:, np.newaxis]
    # (e^epsilon - 1) / (e^(2 epsilon) - 1) = 1 / (e^epsilon + 1)
    usable = log_q < -np.log1p(np.exp(epsilon))
    log_q = np.where(usable, log_q, -2 * epsilon - 2)
    log_stay = np.log1p(-np.exp(log_q))
    log_moment = np.logaddexp(
        log_stay + less * (log_stay - np.log1p(-np.exp(epsilon + log_q))), log_q + epsilon * less
    )
    independent = np.minimum(epsilon, orders[np.newaxis, :] * epsilon**2 / 2)
    return np.where(usable, np.minimum(log_moment / less, independent), independent)


def _gaps(votes: np.ndarray) -> np.ndarray:
    """How far each other class lies behind the plurality: float64 [n, c - 1], ascending."""
    if votes.dtype != np.int64 or votes.ndim != 2 or votes.shape[1] < 2 or (votes < 0).any():
        found = f"{votes.dtype} {list(votes.shape)}"
        raise InvalidInput("votes", "int64 [n_queries, n_classes], at least 0", found)
    ordered = -np.sort(-votes, axis=1)
    return (ordered[:, :1] - ordered[:, 1:]).astype(np.float64)


def _diagnosis(rdp: np.ndarray, what: str, delta: float, conversion: Conversion) -> Diagnosis:
    return Diagnosis(*epsilon_from_rdp(ORDERS, rdp, delta, conversion), what)
