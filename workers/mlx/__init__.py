"""The MLX runner: the only package that imports mlx and mlx-lm."""
