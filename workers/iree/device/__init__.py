"""IREE devices: drivers, compile flags, buffers, waiting."""
