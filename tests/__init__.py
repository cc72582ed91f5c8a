"""The tests. A package, so that no other one of this name that happens to be installed is taken for it."""
