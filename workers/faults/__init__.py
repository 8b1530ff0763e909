"""Fault injection: plans of faults, and the runner and link that carry them out."""
