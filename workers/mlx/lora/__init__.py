"""LoRA adapters that the rows of a step choose, on MLX: docs/adr/0143."""
