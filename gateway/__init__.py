"""The gateway: HTTP, API dialects, streaming, routing, admission, fleet and metrics."""
