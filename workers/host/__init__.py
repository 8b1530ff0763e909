"""The machine: usable cores, memory, device probes."""
