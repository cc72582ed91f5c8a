"""Mechanisms: the randomness and the privacy curve of each come from the same fields."""
