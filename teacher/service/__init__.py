"""The teacher over HTTP: a thin shell around teacher.Teacher. Keys, limits, a queue; no second path to a record."""
