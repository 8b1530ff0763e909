"""Checkpoints of FP8, FP4, NF4 and compressed-tensors: their description, layouts and tensors."""
