"""Shares of the classes among records and PUBLIC rows, by noisy counts over cells: free
post-processing.

If only the shares differ, public rows cast ballots for cells as the records of each class do, times
the ratio of the class's shares (Lipton, Wang and Smola 2018, with cells in the place of
predictions). Ballots that no ratios explain are of rows unlike the records.
"""

from dataclasses import dataclass

import numpy as np
import torch

from .moments import minimised
from .shares import Misfit, Shares
from .tuning import (
    FITS_OF_SHARES,
    FOREIGN_CHANCE,
    FOREIGN_OF_COUNTED_SHIFT,
    FOREIGN_UNEXPLAINED,
    PRIOR_BY_COUNTS,
    WINNING_VOTES,
)


def compared(votes: np.ndarray, noise: float, ballots: np.ndarray) -> tuple[np.ndarray, Shares]:
    """(factors of the classes' votes, float64 [c], under which they are public rows'; the shares
    that go with them).

    ``votes``: the records' in cells, float64 [m, c], with noise of that deviation; ``ballots``: how
    many PUBLIC rows would vote in each cell, [m]. The factors are 1 if the counts tell of no shift,
    or if no shift explains them. A class that is rarer among public rows has a factor of 1, too,
    since it may be asked about later.
    """
    cells = _Cells.of(votes, noise, ballots)
    best, misfit = cells.fitted()
    foreign = is_foreign(misfit, cells.unexplained(best))
    if foreign or not misfit.tells_of_a_shift:
        best = np.zeros_like(best)
    factors = cells.factors(torch.tensor(best)).numpy()
    private = cells.private.numpy()
    public = factors * private
    shares = Shares(private=private, public=public / public.sum(), foreign=foreign)
    # More would raise the noise of a rare class above the votes that win
    most = max(1.0, float(votes.max(axis=1).mean()) / (WINNING_VOTES * max(noise, 1e-9)))
    return factors.clip(1.0, most), shares


@dataclass(frozen=True)
class _Cells:
    """Ballots of public rows as a function of a point: logarithms of factors, float64 [c].

    ``ballots``: [m]; ``records``: votes of each class, scaled to as many ballots, [m, c];
    ``drawn``: variance of ``records`` by chance; ``noise``: deviation of their noise; ``private``:
    the records' shares, [c].
    """

    ballots: torch.Tensor
    records: torch.Tensor
    drawn: torch.Tensor
    noise: float
    private: torch.Tensor

    @classmethod
    def of(cls, votes: np.ndarray, noise: float, ballots: np.ndarray) -> "_Cells":
        scale = ballots.sum() / max(float(votes.sum()), 1.0)
        total = np.maximum(votes.sum(axis=0), max(noise * len(votes) ** 0.5, 1.0))
        return cls(
            ballots=torch.tensor(ballots.astype(np.float64)),
            records=torch.tensor(votes * scale),
            drawn=torch.tensor(votes.clip(0) * scale**2),
            noise=scale * noise,
            private=torch.tensor(total / total.sum()),
        )

    def factors(self, point: torch.Tensor) -> torch.Tensor:
        """Public over private share of each class, [c]; the public shares add up to 1."""
        return point.exp() / (point.exp() @ self.private)

    def squares(self, point: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Squared misfits of the cells' ballots, and what chance and noise explain of them."""
        factors = self.factors(point)
        noisy = self.noise**2 * (factors**2).sum()
        explained = self.ballots.clamp(min=1.0) + self.drawn @ factors**2 + noisy
        return (self.ballots - self.records @ factors) ** 2, explained

    def misfit(self, point: torch.Tensor) -> torch.Tensor:
        """The misfit of all cells, in variances."""
        squares, explained = self.squares(point)
        return (squares / explained).sum()

    def unexplained(self, point: np.ndarray) -> float:
        """Part of the ballots, by squares, that neither the votes nor chance explain."""
        squares, explained = self.squares(torch.tensor(point))
        return max(0.0, float((squares - explained).sum() / (self.ballots @ self.ballots))) ** 0.5

    def fitted(self) -> tuple[np.ndarray, Misfit]:
        """The most probable point, and its misfit. The first fit takes the misfit for chance."""
        cells, classes = self.records.shape
        best, usual = np.zeros(classes), 1.0
        chance, before = float(max(cells - classes + 1, 1)), float(self.misfit(torch.tensor(best)))

        def surprise(point: torch.Tensor) -> torch.Tensor:
            misfit = self.misfit(point) / usual
            return misfit + PRIOR_BY_COUNTS * (self.factors(point).log() ** 2).sum()

        for _ in range(FITS_OF_SHARES):
            best = minimised(surprise, best)
            left, parameters = float(self.misfit(torch.tensor(best))), max(classes - 1, 1)
            fit = Misfit(unshifted=before, left=left, chance=chance, parameters=parameters)
            usual = fit.times_chance
        return best, fit


def is_foreign(misfit: Misfit, unexplained: float) -> bool:
    """Whether public rows are of another source than the records.

    They are if all three hold: the misfit is 2.5 times chance; more than half of the ballots is
    ``unexplained``; the residual is 33% of what a shift of the shares had to explain, or more than
    all ballots are unexplained.
    """
    return (
        misfit.times_chance > FOREIGN_CHANCE
        and unexplained > FOREIGN_UNEXPLAINED
        and (
            misfit.residual > FOREIGN_OF_COUNTED_SHIFT * misfit.to_explain
            or unexplained > 2 * FOREIGN_UNEXPLAINED
        )
    )
