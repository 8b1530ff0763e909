"""Parsers of tool calls, one character at a time."""
