"""Shares of the classes among PUBLIC rows, by released counts over cells: post-processing, free.

Where only the shares differ, public rows cast ballots for cells as the records of each class do,
times the ratio of the class's shares (Lipton, Wang and Smola 2018, with cells in the place of
predictions). Ballots that no ratios explain are of rows unlike the records.
"""

import numpy as np
import torch

from ..linear.moments import minimised
from ..linear.shift import PART, PRIOR, ROUNDS, SURE, Shares

# Chosen on MNIST's HOG, 10 to 160 cells: 1,800 and 400 alike rows, classes that are rare or lacking
# on one side, and digits of another scanner.
LEFT = 2.5  # foreign rows miss by so many times chance, and more
UNLIKE = 0.5  # part of the ballots that foreign rows leave unexplained; alike ones leave 0.4
WINNING = 4.0  # deviations of a class's noise, times its factor, that votes which win are above


def compared(votes: np.ndarray, noise: float, ballots: np.ndarray) -> tuple[np.ndarray, Shares]:
    """(factors of the classes' votes, float64 [c], under which they are public rows'; the shares
    that go with them).

    ``votes``: the records' in cells, float64 [m, c], with noise of that deviation; ``ballots``: how
    many PUBLIC rows would vote in each cell, [m]. The factors are 1 where the counts tell of no
    shift, or no shift explains them; and of a class that is rarer among public rows, since it may
    be asked about later.
    """
    cells, classes = votes.shape
    scale = ballots.sum() / max(float(votes.sum()), 1.0)
    total = np.maximum(votes.sum(axis=0), max(noise * cells**0.5, 1.0))
    private, records = torch.tensor(total / total.sum()), torch.tensor(votes * scale)
    cast = torch.tensor(ballots.astype(np.float64))
    drawn = torch.tensor(votes.clip(0) * scale**2)

    def factors(point: torch.Tensor) -> torch.Tensor:
        return point.exp() / (point.exp() @ private)

    def missed(point: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Squared misfits of the cells' ballots, and what chance and noise explain of them."""
        times = factors(point)
        noisy = (scale * noise) ** 2 * (times**2).sum()
        return (cast - records @ times) ** 2, cast.clamp(min=1.0) + drawn @ times**2 + noisy

    def surprise(point: torch.Tensor) -> torch.Tensor:
        squares, explained = missed(point)
        return (squares / explained).sum() / usual + PRIOR * (factors(point).log() ** 2).sum()

    same = best = np.zeros(classes)
    chance, usual, left = max(cells - classes + 1, 1), 1.0, 0.0
    squares, explained = missed(torch.tensor(same))
    before = float((squares / explained).sum())
    for _ in range(ROUNDS):
        best = minimised(surprise, best)
        squares, explained = missed(torch.tensor(best))
        left = float((squares / explained).sum())
        usual = max(1.0, left / chance)
    unlike = max(0.0, float((squares - explained).sum() / (cast @ cast))) ** 0.5
    mostly = left - chance > PART * (before - chance) or unlike > 2 * UNLIKE
    foreign = usual > LEFT and unlike > UNLIKE and mostly
    taken = not foreign and (before - left) / usual / max(classes - 1, 1) > SURE
    times = factors(torch.tensor(best if taken else same)).numpy()
    public = times * private.numpy()
    most = max(1.0, float(votes.max(axis=1).mean()) / (WINNING * max(noise, 1e-9)))
    return times.clip(1.0, most), Shares(private.numpy(), public / public.sum(), foreign)
