"""Builders of MLIR text: values, loops, dispatches, fused kernels."""
