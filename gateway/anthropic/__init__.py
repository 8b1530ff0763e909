"""Anthropic's Messages API, as a dialect of the gateway."""
