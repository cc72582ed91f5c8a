"""Noise, curves, accountant, ledger, audit: everything the guarantee rests on."""
