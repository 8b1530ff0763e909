"""Vision towers on MLX, and what of a language model knows of images."""
