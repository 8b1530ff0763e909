"""Drafters that draft for all sequences of a step at once, such as a smaller model, and when that pays."""
