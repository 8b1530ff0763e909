"""Engines and slot pools for the tests of the engine."""
