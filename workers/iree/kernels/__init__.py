"""CPU kernels as MLIR text, written by Python."""
