"""Streams that continue at another gateway: positions in their output, records of their requests, and the take-over."""
