"""OpenAI's API: request schema, decoding, rendering, server-sent events."""
