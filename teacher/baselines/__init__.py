"""Private training that labelwall is compared with. Not on the path to a label."""
