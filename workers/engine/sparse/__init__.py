"""Sparse prefill: a smaller model chooses the tokens of a long prompt that are computed (SpecPrefill)."""
