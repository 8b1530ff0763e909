"""Checkpoints whose weights are computed, so that their answers are known."""
