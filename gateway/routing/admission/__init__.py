"""The order of waiting requests, their time limits, and the `Retry-After` of refused ones."""
