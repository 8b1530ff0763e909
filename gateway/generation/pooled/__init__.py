"""Requests for vectors and scores of texts, in any dialect."""
