"""Tuned numbers of this room: features that rounds ask with, and estimates of how many are right.

Beside each number stand what it does, the values that were tried and the data sets, what they
changed, and the commit that set it. "Not recorded" says that nobody wrote it down. Limits of memory
and of solvers are not tuned: they stay in the files that use them.
"""

# --- Axes of a linear classifier (features.py)

# Its axes are divided by their deviations to a power, at most this one; not at all if the variances
# of the first LEADING axes fall no faster than rank to the power -FLAT. Tried: other values are not
# recorded, on CIFAR-10's features, texts, HOG of two sets of images and a network's features of one
# (5c9f869d).
MOST_WHITENED, LEADING, FLAT = 0.5, 64, 0.45

# --- Cells (matrix_round.py)

# Weight of votes' logarithms beside those of probabilities by public labels. Tried: other values
# are not recorded, on KEEL's penbased, phoneme, satimage and vowel; checked on segment, optdigits
# and magic (34e9f62f).
VOTES = 0.5

# --- Estimates (estimates.py)

# Error of a mean probability, at least, and the largest error of an estimate that is said. Tried:
# not recorded (7b957b3f).
PROBABILITY_ERROR, MOST_ERROR = 0.025, 0.05
# Deviations of the noise: a class with fewer records is hardly known. Tried: not recorded
# (7b957b3f).
FEW = 20.0
# Public rows may have more of a class with fewer than so many times FEW, and than this part of its
# equal share, unseen. Tried: other values are not recorded, on docstrings at epsilon 0.25 to 1
# (3da348bf).
UNSEEN, RARE = 2.0, 0.3
# Votes on a row, in deviations of their noise: with fewer, most labels are chance. Tried: not
# recorded (e000fceb).
LEAST_VOTES = 3.0
