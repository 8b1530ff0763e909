"""Which worker computes which sequence: pool, placement, wait queue, failure attribution, quarantine."""
