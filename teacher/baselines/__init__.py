"""Private training for comparison with labelwall. Not on the path to a label."""
