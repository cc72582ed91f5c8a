"""The private side. May read private records; imports wall, never student."""
