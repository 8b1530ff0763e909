"""Sampling from logits, defined once for every array library: filters, noise, log-probabilities, logit edits."""
