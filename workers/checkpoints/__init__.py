"""Checkpoints on disk: tensors, quantization configs, architectures."""
