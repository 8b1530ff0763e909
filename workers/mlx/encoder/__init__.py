"""Encoders on MLX."""
