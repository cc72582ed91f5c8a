"""Shares of the classes among PUBLIC rows that differ from the records', by released gradients or
counts over cells: post-processing, free.

A classifier's probabilities imply shares of the classes. Clipped gradients make them others than
the records' own, so that expectation maximisation (Saerens, Latinne and Decaestecker 2002) with
the released shares goes astray. Here both are unknown: offsets of the logits under which the
classifier is right on public rows, which tell the public shares, and the records' shares. Public
rows that are weighted by the ratio of the shares stand for the records, so they must have the
gradients that the records had: the first, of sums of classes, and the mean of the later ones.

By counts: where only the shares differ, public rows cast ballots for cells as the records of each
class do, times the ratio of the class's shares (Lipton, Wang and Smola 2018, with cells in the
place of predictions). Ballots that no ratios explain are of rows unlike the records.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import log_softmax, softmax

from .moments import Moment, minimised

# Precision of the logarithm of a class's public over its private share, by gradients and by counts.
# 3 hides a class with 1% of the private and 25% of the public rows from gradients at epsilon 0.5.
PRIOR, PRIOR_OF_COUNTS = 1.0, 3.0
ROUNDS = 2  # of the fit: how far public rows are off by chance follows from the fit before
# What offsets explain beyond chance, for each parameter: with less they are left at 0. Public rows
# that are moved or few also seem to be shifted, by 2 to 4.
SURE = 3.0
# Public rows are foreign where no shares of the classes explain the gradients: what is left lies
# that many deviations above chance, is that part of what the gradients tell beside chance, and that
# part of what was to be explained. Chosen on 15 tables, texts, MNIST and photographs at epsilon 0.1
# to 3. A model that is not quite right leaves many times what chance does, but little of all.
DEVIATIONS, UNEXPLAINED, PART = 4.5, 0.33, 0.72
# Of counts. Chosen on MNIST's HOG, 10 to 160 cells: 1,800 and 400 alike rows, classes that are rare
# or lacking on one side, and digits of another scanner.
LEFT_OF_COUNTS, PART_OF_COUNTS = 2.5, 0.33  # foreign rows miss by so many times chance, and more
UNLIKE = 0.5  # part of the ballots that foreign rows leave unexplained; alike ones leave 0.4
WINNING = 4.0  # deviations of a class's noise, times its factor, that votes which win are above


@dataclass(frozen=True)
class Shares:
    """Shares of the classes, float64 [c], among the records and among PUBLIC rows.

    ``foreign``: whether no shares explain what the records' sums say of PUBLIC rows.
    """

    private: np.ndarray
    public: np.ndarray
    foreign: bool = False


def shifted(logits: np.ndarray, moments: Sequence[Moment]) -> tuple[np.ndarray, Shares]:
    """(offsets of the logits for public rows, float64 [c]; the shares that go with them).

    ``logits``: of the moments' PUBLIC rows by a classifier, float64 [n, c]. The offsets are 0 where
    the moments tell of no shift, or where no shift explains them; a class that is rarer among
    public rows keeps its share of the records.
    """
    classes, most = logits.shape[1], min(moment.most for moment in moments)
    moments, rows = [moment.first(most) for moment in moments], torch.tensor(logits[:most])

    def shares(point: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(probabilities of the rows' labels [n, c], private and public shares [c])."""
        likely = torch.softmax(rows + point[0], dim=1)
        return likely, torch.softmax(point[1], dim=0), likely.mean(dim=0).clamp(min=1e-300)

    def records(point: torch.Tensor) -> torch.Tensor:
        """How much each label of each row counts as a record, [n, c]."""
        likely, private, public = shares(point)
        return likely * private / public

    def missed(point: torch.Tensor) -> torch.Tensor:
        pairs, weights = zip(moments, precisions, strict=True), records(point)
        return torch.stack([moment.missed(weights, p) for moment, p in pairs]).sum()

    def surprise(point: torch.Tensor) -> torch.Tensor:
        _, private, public = shares(point)
        return missed(point) + PRIOR * ((public.log() - private.log()) ** 2).sum()

    same = softmax(logits[:most], axis=1).mean(axis=0)
    start = best = np.stack([np.zeros(classes), np.log(same)])  # no shift
    for again in range(ROUNDS + 1):
        precisions = [moment.precision(records(torch.tensor(best))) for moment in moments]
        if again < ROUNDS:
            best = minimised(surprise, best)
    left, before = (float(missed(torch.tensor(point))) for point in (best, start))
    parameters = 2 * (classes - 1)
    size = sum(moment.gradient.numel() for moment in moments) * (1 - 1 / classes)
    chance = max(size - parameters, 1.0)
    usual = max(1.0, left / chance)
    whole = sum(float((p * m.gradient**2).sum()) for m, p in zip(moments, precisions, strict=True))
    least = UNEXPLAINED * (whole - chance), PART * (before - chance)
    foreign = left - chance > max(DEVIATIONS * math.sqrt(2 * chance), *least)
    taken = not foreign and (before - left) / usual / parameters > SURE
    offsets = best[0] - best[0].mean() if taken else np.zeros(classes)
    public = softmax(logits + offsets, axis=1).mean(axis=0)
    _, *fitted = (each.numpy() for each in shares(torch.tensor(best)))
    ratio = log_softmax(np.log(fitted[0]) - np.log(fitted[1])) if taken else 0.0
    private = softmax(np.log(np.maximum(public, 1e-300)) + ratio)
    if taken:  # a class that public rows lack may be asked about later: it keeps its share
        offsets = offsets + np.maximum(0.0, np.log(private) - np.log(np.maximum(public, 1e-300)))
    return offsets - offsets.mean(), Shares(private, public, foreign)


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
        away = PRIOR_OF_COUNTS * (factors(point).log() ** 2).sum()
        return (squares / explained).sum() / usual + away

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
    mostly = left - chance > PART_OF_COUNTS * (before - chance) or unlike > 2 * UNLIKE
    foreign = usual > LEFT_OF_COUNTS and unlike > UNLIKE and mostly
    taken = not foreign and (before - left) / usual / max(classes - 1, 1) > SURE
    times = factors(torch.tensor(best if taken else same)).numpy()
    public = times * private.numpy()
    most = max(1.0, float(votes.max(axis=1).mean()) / (WINNING * max(noise, 1e-9)))
    return times.clip(1.0, most), Shares(private.numpy(), public / public.sum(), foreign)
