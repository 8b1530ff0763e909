"""Runners of encoders: what is the same on all backends."""
