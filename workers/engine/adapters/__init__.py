"""Adapters that a runner takes while it serves."""
