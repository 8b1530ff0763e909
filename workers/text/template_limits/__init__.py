"""Requests in forms that all chat templates take."""
