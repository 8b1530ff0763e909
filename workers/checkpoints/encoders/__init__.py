"""Encoders, whose tokens attend to each other in both directions: what config.json says of them, and their tensors."""
