"""Tests of the emulated networks."""
