"""The teacher over HTTP: keys, limits and a queue around teacher.Teacher.

There is no second path to a record.
"""
