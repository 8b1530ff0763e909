"""Conversion of checkpoints to the formats of other engines."""
