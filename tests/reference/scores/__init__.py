"""Penalties and scores against transformers."""
