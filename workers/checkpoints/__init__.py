"""Checkpoints on disk: tensors, quantization formats, architectures."""
