"""The IREE runner: the only door of iree and jax."""
