"""Baton serves language models over HTTP. The command is `baton`; everything but the version is private."""

__version__ = "0.1.0"
