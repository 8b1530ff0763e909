"""Formats in which models write reasoning and tool calls, and the streaming parser that reads them."""
