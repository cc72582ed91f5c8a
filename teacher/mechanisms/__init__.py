"""One mechanism a folder; its randomness and its privacy curve come from the same fields."""
