"""LoRA adapters that the rows of a step choose, on CPUs: docs/adr/0143."""
