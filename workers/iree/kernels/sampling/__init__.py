"""Sampling of one row of logits per workgroup."""
