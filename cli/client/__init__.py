"""Clients of a running server, and answers from a model in this process."""
