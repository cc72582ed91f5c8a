"""One mechanism a file; each owns its randomness and its privacy curve, from one set of fields."""
