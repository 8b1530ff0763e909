"""The graphs of an encoder."""
