"""Model architectures: config.json, one entry per family, and the tensors of a model."""
