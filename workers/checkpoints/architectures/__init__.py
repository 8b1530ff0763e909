"""Which models there are: what a config.json describes, one entry a family, and the tensors that belong to it."""
