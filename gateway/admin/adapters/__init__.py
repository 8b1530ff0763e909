"""Adapters that requests load and unload: docs/adr/0157 and docs/adr/0163."""
