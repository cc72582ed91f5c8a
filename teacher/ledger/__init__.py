"""The ledger: what was charged and released, stored so that nothing of it is ever forgotten."""
