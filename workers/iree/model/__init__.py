"""The decoder as a JAX function, and the operations whose form depends on the device."""
