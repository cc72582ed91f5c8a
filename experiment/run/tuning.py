"""Measured numbers of how long a run takes, for its bar and for `plan`.

Seconds of two cores that nothing else uses: `labelwall demo --timing` (user time, where others use
them) and the tests' runs of own data. A trial (expected.py) measures the rest on each machine.
"""

REHEARSAL, READING, ASKING, REPORT = 20.0, 1.0, 2.0, 1.5  # of each part
EMBEDDING, TRAINING = 5.0, 15.0  # before the public rows are read, and a trial tells
TRIED_ROWS, TRIED_STEPS = 8, 3  # of a trial, after one to begin with
STEP, AROUND = 0.003, 1.3  # of Lightning: for each step, and in those of its network
VIEWS = {"supervised": 0, "vat": 3, "uda": 2, "fixmatch": 2}  # of each unlabelled row in a step
REST = 0.5  # of a network's time for a row, that the last blocks of a pretrained student take
RANGE = (0.7, 2.0)  # of the expectation: `plan` says no more than this
