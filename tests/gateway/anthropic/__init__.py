"""Tests of `gateway.anthropic`."""
