"""Routing of sequences to workers: pool, placement, wait queue, failure attribution, quarantine."""
