"""Benchmarks of Baton: scripts that people run, and the parts that they share."""
