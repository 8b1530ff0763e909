"""The generator of the training text: seeded, deterministic, and disjoint from the questions of the evaluation."""
