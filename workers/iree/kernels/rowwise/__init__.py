"""Kernels that work row by row: norms, GLU and activations."""
