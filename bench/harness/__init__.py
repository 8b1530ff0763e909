"""What benchmarks share: command lines, models, servers, clients, limits, rounds and plots."""
