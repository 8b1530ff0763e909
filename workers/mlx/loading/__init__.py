"""Loads a checkpoint into mlx-lm's modules."""
