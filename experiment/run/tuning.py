"""Seconds of a CPU that parts take, by `labelwall demo --timing --threads 1` (e3180a56)."""

REHEARSAL, READING, ASKING, REPORT = 20.0, 1.0, 2.0, 1.5  # of each part
TRIED = 8  # rows that are embedded to see how long that takes
STEP, AROUND = 0.003, 1.3  # Lightning's own in each step; its work around a network's passes
VIEWS = {"supervised": 0, "vat": 3, "uda": 2, "fixmatch": 2}  # of each unlabelled row in a step
REST = 0.5  # of a network's time for a row, that the last blocks of a pretrained student take
RANGE = 0.7, 2.0  # times what is expected: `plan` says no more than this
SPARE = 1.1  # times what refining takes, so that the next trial allows it, too
