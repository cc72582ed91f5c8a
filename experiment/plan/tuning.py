"""Tuned numbers of this room: what searches try, and for how long.

Beside each number stand what it does and the commit that set it and, if somebody wrote them down,
the values that were tried, the data sets, and what they changed.
"""

# --- Stages of a search (planner.py, search.py)
REFINED, FINAL = 3, 5  # best candidates: their neighbours are tried; they are forecast (47eed0e6)
HALVED = 32  # best candidates by one draw that are rehearsed by all draws (224da62d)
HOPE = 0.85  # share of another kind's worth; a kind with less is searched no further (224da62d)
# A kind with many candidates tries every seventh first, and the others if the best has HOPE squared
# of another kind's worth. Timed on 6,000 vectors of 384 numbers (85f6a29e).
STRIDE = 7
# Times as many rehearsals of the last candidates, with new draws. 900 rows of MNIST: a choice had
# 91.1% by four draws that made it the best, 89.5% by forty others (34efda59).
FRESH = 8
# Times as many records as a guess, for which axes and features are rehearsed, too; of so many the
# best by one draw are forecast by so many others. Other values: not tried. decisions.md has what it
# gains and loses on eight sets (8e368733).
MORE, LAST, DRAWS_OF_MORE = (4, 16), 3, 4
VALUES_ASKED = 300  # queries, if no round says how many (a18e8678)
ASKED = (1.0, 0.75, 0.5, 0.25, 0.125)  # of the public rows, if records' budgets deplete (d2eb3b58)

# --- Rows and features of a rehearsal (rehearsal.py, stand_ins.py, search.py)
# Public rows asked about, labelled rows, labelled rows that are queries of their own, and rows of
# either kind if a network computes features. More take longer (47eed0e6, 91c31b07).
MAX_PUBLIC, MAX_LABELLED, MAX_NEIGHBOURS, MAX_NETWORK = 2_000, 4_000, 1_000, 1_500
FOLDS = 4  # parts of the labelled rows, one of which is asked about (47eed0e6)
MOST_AXES, WHITENED = 256, (16, 64, 128)  # principal axes: of the rows; whitened (91c31b07)
# Cells for a class and rows for a cell that tell whether public rows are foreign (11c49f5b).
CELLS_A_CLASS, CELL_ROWS = 4, 10
CURVED = 100  # dimensions up to which vectors are taken for a table's columns (46521e81)
EMBEDDED = 64  # dimensions from which vectors are taken for a network's features (f42ee52b)
GROUPS = 8  # parts of the rows that stand for records, between which sums vary (47eed0e6)
MIN_VARIANCE = 0.1  # share of the noise's variance that is added in any case (1f595998)

# --- Candidates: cells (candidates.py)
ROWS_A_CELL = 3  # public rows, at least: fewer do not tell where cells are (47eed0e6)
# Cells for a class, at least: with fewer the start of k-means decides which groups of rows merge.
# Three groups in two classes: two cells had 67.5% right, eight 100% (b7f24da4).
LEAST_CELLS = 4
CELLS, FACTORS = (10, 40, 160, 640), (0.5, 0.7, 1.4, 2.0)  # and around good ones (91c31b07)
SHAPES = ((1, 1), (2, 3))  # neighbours and row neighbours: hard and soft votes (47eed0e6)
PLAIN = 64  # dimensions beyond which neighbours want whitened features (fb34e608)

# --- Candidates: linear models
AXES = (4, 8, 16, 32, 64, 128, 256)  # (47eed0e6)
ONE_STEP_AXES = (16, 48)  # with one step, for tiny budgets: many want too much noise (31559f18)
# Bounds in half ranges; residuals of classes are clipped as their default says (f42bbf41).
CLIPS = {"value": (0.1, 0.25, 0.5)}

# --- Candidates: votes and values
SAMPLING = (1.0, 0.5, 0.25, 0.1, 0.04, 0.015)  # probability that a record is sampled (e2e54a12)
SAMPLED = (0.03, 0.1, 0.3)  # the same for values (a18e8678)
PARTS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)  # of the sampled that vote (a18e8678)
MIN_VOTES, MAX_VOTES = 10, 2_000  # fewer are mostly noise; more take long to search (a18e8678)
LEAST_K = 5  # records that a value is from (a18e8678)
THRESHOLDS = (0.0, 0.25, 0.5, 0.75)  # of the votes (34efda59)
# Most noise on votes, and how many times the least it is. The argmax curve of a new sigma takes up
# to 9 s of CPU in this range, minutes outside. Halving votes, sampling probability and noise gives
# nearly the same price and answers, so the range costs little accuracy (a18e8678).
MOST_NOISE, LEAST = 40.0, 3.0
SCREENING = (1.0, 2.0, 4.0)  # noise of the screening over that of the votes (a18e8678)
# Factors around good votes, ever nearer, and the exponents by which a move has them: of the votes,
# the sampling probability, the noise of votes, and the noise of the screening (a18e8678).
STEPS = (1.4, 1.4, 1.2, 1.2, 1.1)
MOVES = ((1, 1, 0, 0), (0, 1, 0, 0), (1, 0, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (1, 1, 1, 1))

# --- Candidates: individual budgets
# Cosines that count as near, and noise on labels in roots of the threshold, between which and 1
# weights lie. Half and twice of the noise on counts, which stays, gained at most 0.3 points on
# 5,000 rows of MNIST at epsilon 1 and 4 (d2eb3b58).
LEVELS, LABEL_NOISE = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7), (0.3, 0.9, 2.7)
BUDGET_STEPS = (1.6, 1.25)  # factors around good ones (d2eb3b58)

# --- Methods beside one another (compare/)
RATES = (0.25, 1.0, 4.0)  # of a baseline's default learning rate (5a487dfe)
BATCHES = 4  # of a baseline in all records: its sampling rate is one over it (5a487dfe)
# PATE is asked the most of these queries that leave the noise below a share of its classifiers, and
# at least the fewest (5a487dfe).
QUERIES, FEWEST, NOISE_SHARE = (2000, 1000, 600, 300, 150, 80, 40, 20), 10, 0.2
