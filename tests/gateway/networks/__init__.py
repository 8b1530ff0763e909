"""Gateways and remote workers over emulated networks."""
