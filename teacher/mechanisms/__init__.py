"""One mechanism a folder; each owns its randomness and its privacy curve, from one set of fields."""
