"""Admission of requests, the order of those that wait, their time limits, and the `Retry-After` of refused ones."""
