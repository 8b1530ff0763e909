"""The MLX runner: the only door of mlx and mlx-lm."""
