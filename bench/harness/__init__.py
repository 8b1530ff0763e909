"""Support for benchmarks: command lines, models, engines, servers and load."""
