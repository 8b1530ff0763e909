"""An encoder in JAX, and its operations."""
