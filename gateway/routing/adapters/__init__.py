"""Adapters that are loaded while the server runs: docs/adr/0157."""
