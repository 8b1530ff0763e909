"""Clients: of a running server over HTTP, and of a model in this process."""
