"""Measurements of structured output."""
