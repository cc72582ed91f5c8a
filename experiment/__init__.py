"""Uses both sides: configuration, rounds, report.

The only package that imports teacher and student.
"""
