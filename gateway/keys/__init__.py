"""API keys: their file, their limits and their use."""
