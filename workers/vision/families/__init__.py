"""The families of vision towers: their fields in config.json, tensors, preprocessing and prompts."""
