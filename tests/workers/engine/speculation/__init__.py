"""Tests of speculative decoding."""
