"""Modules that replace those of mlx-lm, where these round or compute otherwise than transformers."""
