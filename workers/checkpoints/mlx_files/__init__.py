"""Checkpoints that mlx-lm has converted."""
