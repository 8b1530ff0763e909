"""The architectures of GGUF files: the names and the order of their tensors, and the keys that only they have."""
