"""Attention over the packed KV cache, and the preparation of its rows."""
