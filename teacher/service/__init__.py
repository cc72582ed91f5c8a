"""The teacher over HTTP: keys, limits and a queue around Teacher, the only path to a record."""
