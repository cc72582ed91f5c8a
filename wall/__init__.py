"""The boundary: every type that may cross between the private and the public side."""
