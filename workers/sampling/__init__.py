"""Sampling from logits, defined once for all array libraries: filters, noise, log-probabilities, logit edits."""
