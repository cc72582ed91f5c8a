"""A finished run's student put to use: new rows classified, other programs' formats.

Public: no private row, and nothing of the custodian's, is opened. The student was released, so
whatever is computed from it is post-processing and costs no privacy.
"""
