"""Models that only mlx-lm describes: one sequence at a time, in mlx-lm's own caches."""
