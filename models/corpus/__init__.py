"""The generator of the training text: seeded, deterministic, and apart from the questions kept for evaluation."""
