"""Both sides put to work: configuration, rounds, report.

The only package that imports teacher and student.
"""
