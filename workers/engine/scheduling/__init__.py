"""The order of sequences, preemption, and the token budget of a step."""
