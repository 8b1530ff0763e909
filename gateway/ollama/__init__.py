"""Ollama's API, as a dialect of the gateway."""
