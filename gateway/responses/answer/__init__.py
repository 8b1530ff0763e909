"""Answers of the Responses API: the response object and its events."""
