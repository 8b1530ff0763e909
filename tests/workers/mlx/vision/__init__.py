"""Tests of images on MLX."""
