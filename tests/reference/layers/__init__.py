"""Tensors of layers as transformers names them, for checkpoints that are made by tests."""
