"""Encoders on IREE."""
