"""Attention over the packed KV cache, and what prepares its rows."""
