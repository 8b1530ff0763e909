"""The scripted runner: it needs no device and no model."""
