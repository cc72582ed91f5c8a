"""NOT RELEASABLE: the data-dependent cost of screening at its votes, for the custodian alone.

Data-dependent RDP (CVPR20 section 4.3 and appendix F; Papernot et al. 2018) uses the query's actual
plurality where a certificate uses the worst one. The number is a function of the private rows:
released, or used to decide whether to answer, it voids the guarantee. It is a statement about one
data set, not differential privacy, and it does not combine with subsampling: amplification rests on
a bound that holds for every sample, so there is no sampling probability here. Nothing on the path
of an answer imports this file.
"""

from dataclasses import dataclass

import numpy as np

from labelwall.teacher.accounting.conversion import Conversion, epsilon_from_rdp
from labelwall.teacher.accounting.curves import ORDERS, screening_rdp
from labelwall.wall.errors import InvalidInput

BANNER = (
    "PRIVATE, for the custodian alone: not for release, and not for deciding whether to answer."
)


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """Epsilon of ``releases`` at ``order``, were their votes public.

    Prints only with its banner.
    """

    epsilon: float
    order: float
    releases: str

    def render(self) -> str:
        """One line for the custodian's screen."""
        cost = f"epsilon {self.epsilon:.3f} (data-dependent, order {self.order:g})"
        return f"{BANNER} {self.releases} at the votes that were cast: {cost}"


def diagnose_screening(
    plurality: np.ndarray,
    *,
    max_votes: int,
    threshold: int,
    sigma: float,
    delta: float,
    conversion: Conversion = "canonne",
) -> Diagnosis:
    """Data-dependent epsilon of one unsampled screening a query.

    ``plurality``: int64 [n_queries], votes in 0..max_votes. A query with t votes costs its row of
    ``screening_terms``, the divergence between its own bit and that of every neighbouring data set,
    in both directions (CVPR20 Definition 6); queries add up. Raises InvalidInput for votes outside
    0..max_votes, and as ``screening_rdp`` does.
    """
    votes, counts = np.unique(plurality, return_counts=True)
    terms = screening_terms(ORDERS, votes, max_votes=max_votes, threshold=threshold, sigma=sigma)
    epsilon, order = epsilon_from_rdp(ORDERS, counts @ terms, delta, conversion)
    return Diagnosis(epsilon, order, f"{len(plurality)} screenings")


def screening_terms(
    orders: np.ndarray,
    plurality: np.ndarray,
    *,
    max_votes: int,
    threshold: int,
    sigma: float,
    sample_rate: float = 1.0,
) -> np.ndarray:
    """The screening curve's divergences at each plurality t, before the maximum over t.

    float64 [n, n_orders] for ``plurality`` int64 [n]. A row takes the neighbours t - 1 and t + 1
    that lie in 0..max_votes, both directions; the maximum over all t is ``screening_rdp``. With
    ``sample_rate`` below 1 the plurality is that of the OTHER sampled records: such a row
    shows where the worst case is and is no data set's data-dependent loss. Raises InvalidInput for
    votes outside 0..max_votes, and as ``screening_rdp`` does.
    """
    valid = plurality.dtype == np.int64 and plurality.ndim == 1
    if not valid or (plurality < 0).any() or (plurality > max_votes).any():
        found = f"{plurality.dtype} {list(plurality.shape)}"
        raise InvalidInput("plurality", f"int64 [n_queries] in 0..{max_votes}", found)
    rows = np.zeros((len(plurality), len(orders)))
    for row, t in zip(rows, plurality.tolist(), strict=True):
        low, high = max(t - 1, 0), min(t + 1, max_votes)
        # Votes low..high before a threshold are votes 0..high - low before the threshold less low.
        noise = {"sigma": sigma, "sample_rate": sample_rate}
        row[:] = screening_rdp(orders, max_votes=high - low, threshold=threshold - low, **noise)
    return rows
