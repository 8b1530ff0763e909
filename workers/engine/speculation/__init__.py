"""Speculative decoding: drafts of the next tokens, which one step verifies, and when they pay."""
