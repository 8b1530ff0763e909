"""What benchmarks share: command lines, models, engines, servers and load."""
