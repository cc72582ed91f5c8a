"""labelwall: differentially private students from private nearest-neighbour teachers."""
