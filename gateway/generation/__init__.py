"""Requests and their output, independent of the API dialect."""
