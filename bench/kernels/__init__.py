"""Kernels alone: what attention costs, and what paged KV would."""
