"""Adapters that a worker loads while it serves."""
