"""The machine and the parent process: usable cores, memory, device probes, the end of the parent."""
