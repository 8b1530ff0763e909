"""Forwards of the MLX runner, and the rows and states of its slots between them."""
